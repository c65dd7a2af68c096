"""/compare?a=…&b=…: two batches or jobs side by side: what changed, the answers that differ, and their figures."""

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue
from pydantic import Field

from batchyard.errors import NotFoundError, RequestError, UnavailableError
from batchyard.wording import FLAWS
from results.opening import open_rows
from results.pairs import Only, Pairs
from results.rows import Rows, TaskGrades
from store import segments
from store.jobs import reading
from store.jobs.lifecycle import JOBS
from store.records import Batch
from webapp.batches import get_batch, to_wire
from webapp.pages import rows, speed
from webapp.pages.batches import SUMMARY, json_artifacts
from webapp.pages.formats import brief, count, duration, figure, money, percent, rate
from webapp.pages.forms import Blank
from webapp.requests import current_context, query
from webapp.wire.batches import BatchObject
from webapp.wire.lists import QueryParams
from webapp.work import get

routes = Blueprint("compare", __name__, url_prefix="/compare")

PAIRS = 25
CODES = 20
TASKS = 50


class CompareParams(QueryParams):
    a: str = Field("", max_length=64)
    b: str = Field("", max_length=64)
    only: Only = "differ"
    after: Annotated[int | None, Blank] = Field(None, ge=1, le=2**53)


class Measure(NamedTuple):
    """What was measured of two batches, for people. `change` is from the first to the second, maybe empty."""

    name: str
    first: str
    second: str
    change: str = ""


@routes.get("")
def show() -> ResponseReturnValue:
    params = query(CompareParams)
    if not params.a or not params.b or params.a == params.b:
        raise RequestError("Choose two batches to compare: ?a=batch_…&b=batch_…", param="b")
    pair = _batch(params.a), _batch(params.b)
    first, second = shown = to_wire(pair)
    variables: dict[str, Any] = {"params": params, "batches": shown, "measures": list(_measures(pair, first, second))}
    try:
        variables |= _answers(pair, params)
    except (NotFoundError, UnavailableError) as error:
        variables |= {"problem": rows.problem_of(error)}
    return flask.render_template("compare.html", **variables)


def _batch(work_id: str) -> Batch:
    """Return a batch, or that of a job's first stage. Raises NotFoundError."""
    if not work_id.startswith("job_"):
        return get_batch(work_id)
    job = get(JOBS, work_id)
    with current_context().database.read() as session:
        made = [batch for _, batch in reading.stage_batches(session, [job.id])[job.id] if batch is not None]
    if not made:
        raise NotFoundError(f"Job '{work_id}' has no requests of its own to compare.")
    return made[0]


def _answers(pair: tuple[Batch, Batch], params: CompareParams) -> dict[str, Any]:
    if unknown := next((batch.id for batch in pair if not batch.planned), None):
        reason = "it is still validated, or its input is invalid"
        return {"problem": f"The requests of batch '{unknown}' are unavailable: {reason}."}
    context = current_context()
    with open_rows(context, pair[0]) as one, open_rows(context, pair[1]) as other:
        pairs = Pairs(one, other)
        page = pairs.page(PAIRS, after=params.after, only=params.only)
        codes = dict(one.codes()), dict(other.codes())
        return {
            "problem": one.missing or other.missing,
            "shared": pairs.shared,
            "only": (pairs.only_first, pairs.only_second),
            "graded": pairs.graded,
            "goods": pairs.goods,
            "differences": pairs.differences(),
            "tasks": list(_tasks(one, other)) if pairs.graded else [],
            "page": page,
            "pairs": [(rows.pair_of(pair.first), rows.pair_of(pair.second), pair) for pair in page.pairs],
            "codes": [(code, codes[0].get(code, 0), codes[1].get(code, 0)) for code in (codes[0] | codes[1])][:CODES],
        }


def _tasks(first: Rows, second: Rows) -> Iterator[tuple[str, TaskGrades | None, TaskGrades | None, str]]:
    """Yield the groups of scored requests, the worst of the first batch first, with the change of what was right."""
    groups = {task.name: task for task in second.tasks()}
    for task in first.tasks()[:TASKS]:
        other = groups.get(task.name)
        change = _points(task.right / task.number, other.right / other.number) if other else ""
        yield task.name, task, other, change


def _measures(pair: tuple[Batch, Batch], first: BatchObject, second: BatchObject) -> Iterator[Measure]:
    def measure(name: str, path: str, words: Callable[[Any], str] = count) -> Measure:
        value = attrgetter(path)
        return _measure(name, value(first), value(second), words)

    yield measure("Requests", "request_counts.total")
    yield measure("Succeeded", "request_counts.completed")
    yield measure("Failed", "request_counts.failed")
    for name, words in FLAWS.items():
        if getattr(first.batchyard, name) or getattr(second.batchyard, name):
            yield measure(f"Answers {words}", f"batchyard.{name}")
    yield measure("Input tokens", "usage.input_tokens")
    yield measure("Cached prompt tokens", "usage.input_tokens_details.cached_tokens")
    yield measure("Output tokens", "usage.output_tokens")
    cost, other = first.batchyard.cost, second.batchyard.cost
    if cost and other:
        change = _change(float(cost.amount), float(other.amount)) if cost.currency == other.currency else ""
        yield Measure("Cost", money(cost), money(other), change)
    latencies = [entry.batchyard.latency for entry in (first, second)]
    for name in ("p50", "p95"):
        values = [None if latency is None else getattr(latency, name) for latency in latencies]
        yield _measure(f"Time per request, {name}", values[0], values[1], brief)
    yield _measure("Took", _seconds(first), _seconds(second), duration)
    with current_context().database.read() as session:
        rates = [speed.average(segments.timeline(session, batch)).rows for batch in pair]
    yield _measure("Requests per second", rates[0], rates[1], rate)
    yield from _scores(*(json_artifacts(one, SUMMARY) for one in pair))


def _measure(name: str, first: float | None, second: float | None, words: Callable[[Any], str]) -> Measure:
    return Measure(name, words(first), words(second), _change(first, second))


def _seconds(batch: BatchObject) -> float | None:
    ended_at = batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at
    return None if ended_at is None else ended_at - batch.created_at


def _scores(first: Mapping[str, Mapping[str, Any]], second: Mapping[str, Mapping[str, Any]]) -> Iterator[Measure]:
    for artifact in first.keys() & second.keys():
        step = artifact.removesuffix("-summary.json").capitalize()
        for key, value in first[artifact].items():
            other: Any = second[artifact].get(key)
            name = f"{step}: {key.replace('_', ' ')}"
            if all(isinstance(number, int | float) and not isinstance(number, bool) for number in (value, other)):
                if key == "accuracy":
                    yield Measure(name, percent(value), percent(other), _points(value, other))
                else:
                    yield _measure(name, value, other, figure)


def _points(first: float, second: float) -> str:
    """Return the change from the first share to the second, in points of a hundred."""
    return "the same" if first == second else f"{(second - first) * 100:+.1f} points"


def _change(first: float | None, second: float | None) -> str:
    """Return the change from the first number to the second, in percent, or as a factor from ten on."""
    if first is None or second is None:
        return ""
    if first == second:
        return "the same"
    if not first:
        return f"{second:+.4g}"
    times = second / first
    return f"{times:,.0f} times" if times >= 10 else f"{times - 1:+.1%}".replace("%", " %")
