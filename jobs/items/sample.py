"""The plan of a job: the forecast for all items, from a sample."""

from collections import defaultdict
from typing import Any

from batchyard import json_lines
from batchyard.endpoints.forms import Checks
from batchyard.recipes import is_wrong
from jobs.items import texts
from jobs.items.states import ItemStates
from jobs.stage_records import answers, records_of
from store import speeds
from store.accounting import usage
from store.formats import plan
from store.formats.job_chunks import UNENDED
from store.records import Job
from tasks.context import AppContext
from tasks.intake import sampling
from tasks.intake.sampling import FLAWS, WRONG, SampledAnswer
from tasks.port import running_models
from tasks.scheduling.costs import throughput_of

STUCK = "stuck"


def report(context: AppContext, job: Job) -> dict[str, Any]:
    """Return the forecast for all items of a job that is `sampling`, as tasks.intake.sampling.report for a batch.

    An item has the tokens and flaws of its answers. Raises UnavailableError, BatchyardError.
    """
    requests = _requests(context, job)
    sample = sorted(_items(context, job, requests), key=lambda item: (item.input_tokens, item.custom_id))
    answered = [one for ones in requests.values() for one in ones]
    used = len(answered), sum(one.input_tokens for one in answered), sum(one.output_tokens for one in answered)
    with context.database.read() as session:
        cost = usage.job_costs(session, [job.id]).get(job.id)
        throughputs = speeds.throughputs(session, running_models(context, session))
    costs = sampling.cost_of(job.models, cost, sample, job.total, used)
    throughput = throughput_of(next(iter(job.models)), "decode", throughputs) if len(job.models) == 1 else None
    seconds = None
    if throughput is not None and sample:
        seconds = sampling.seconds_of(throughput, sample, job.total, job.total - len(sample))
    found = sampling.summary_of(sample, job.total, (*FLAWS, STUCK))
    elsewhere = sampling.hosted_costs(context, sample, job.total)
    forecast = found["forecast"] | {"cost": costs, "seconds": seconds, "hosted": elsewhere}
    return found | {"models": sorted(job.models), "forecast": forecast}


def _requests(context: AppContext, job: Job) -> dict[int, list[SampledAnswer]]:
    """Return the answers to the requests of each item, by its position."""
    with context.database.read() as session:
        stages = records_of(session, job.id)
    checks, by_position = Checks(sampling.CHECK_SECONDS), defaultdict[int, list[SampledAnswer]](list)
    for stage in stages:
        tables = [
            plan.segment(context.artifacts, *place, ["line", "body", "same_as", "position"]) for place in stage.plans
        ]
        asked = {
            line: (body, position)
            for table in tables
            for line, body, position in zip(
                table["line"].to_pylist(),
                table["body"].take(plan.body_rows(table)).to_pylist(),
                table["position"].to_pylist(),
                strict=True,
            )
        }
        for line, answer, seconds in answers(context.artifacts, [sha256 for _, sha256 in stage.chunks]):
            body, position = asked[line]
            by_position[position].append(sampling.parsed(answer, seconds, body, checks))
    return by_position


def _items(context: AppContext, job: Job, requests: dict[int, list[SampledAnswer]]) -> list[SampledAnswer]:
    """Return the items of the sample that have ended, as answers."""
    states = ItemStates(context, job)
    ended = states.rows(range(job.sample_rows or 0), ["custom_id", "state", "result", "error"])
    items = []
    for position, row in ended.items():
        if row["state"] in UNENDED:
            continue
        result, error = json_lines.loads(row["result"] or "null"), json_lines.loads(row["error"] or "null")
        scores, answered = texts.samples(result), requests[position]
        flaws = {flaw for one in answered for flaw in one.flaws if flaw != "failed"} | {row["state"]}
        flaws |= {WRONG} if any(map(is_wrong, scores)) else set()
        items.append(
            SampledAnswer(
                custom_id=row["custom_id"],
                text=str((result or {}).get("text") or "")[: sampling.MAX_TEXT],
                error=None if error is None else (str(error.get("code")), str(error.get("message"))),
                flaws=frozenset(flaws),
                scored=bool(scores),
                input_tokens=sum(one.input_tokens for one in answered),
                output_tokens=sum(one.output_tokens for one in answered),
                seconds=sum(one.seconds for one in answered),
                requests=len(answered),
            )
        )
    return items
