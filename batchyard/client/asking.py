"""Asking a model about each row of a table: requests in batches, earlier calls taken up, what became of each row."""

import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
import orjson

from batchyard import durations, json_lines, settings
from batchyard.client import answers, resume
from batchyard.client.answers import RowAnswer
from batchyard.client.api import ApiClient, connect, uploaded
from batchyard.client.frames import Column, Frame
from batchyard.client.progress import bar, follow, labelled, problems
from batchyard.errors import ConfigurationError, NotFoundError, RequestError
from batchyard.statuses import TERMINAL
from batchyard.tables.cells import CellError
from batchyard.tables.template import Template, TemplateError
from batchyard.wording import FLAWS, MAX_LIST, NEWER, column_order, cut, flaws, nearest, quoted

MAX_REQUESTS = 50_000
MAX_BYTES = 200_000_000
"""Of one batch: OpenAI's limits, which are this server's defaults. More rows become several batches."""
PLAN_POLL_SECONDS = 0.3
DETAILS = ("error", "tokens")
_CASCADES = dict.fromkeys(("cascade", "confidence"), "map, filter and classify") | {
    "agree": "map and classify",
    "by": "map",
    "precision": "filter",
    "recall": "filter",
}
"""The options of cascades, and the calls that take them."""
GONE = "the file with its answer was deleted or has expired; the same call again computes it"

Values = Mapping[str, Any]
"""The cells of a row, by column."""


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """How a call asks."""

    window: str = "24h"  # until when all must be answered, such as "24h"
    again: bool = False  # compute everything anew, also where the same was asked before
    progress: bool = True  # say on standard error how far it is
    server: ApiClient | None = None  # None: the one that BATCHYARD_URL names, or the local stack in ./data
    name: str = "rows"  # of the batches' input files
    sample: int | None = None  # have only so many rows answered, drawn at random

    def connected(self) -> ApiClient:
        return self.server or connect(settings.load().data, "BATCHYARD_DATA")


class AnswerWarning(UserWarning):
    """Some rows have no answer, or one with a flaw. `counted`: the latter, by wording.FLAWS."""

    def __init__(self, message: str, counted: Mapping[str, int]) -> None:
        super().__init__(message)
        self.counted = counted


class RowResults(ABC):
    """What became of each row: what a subclass keeps of its answer or why there is none, and its tokens."""

    def __init__(self) -> None:
        self.values: list[Any] = []  # what `keep` has put there for a row; None before
        self.errors: list[str | None] = []  # why a row has no answer; None if it has one
        self.tokens: list[int | None] = []  # of its request and its answer; None if nobody counted
        self.unusable: str | None = None  # the first row with a cell that no request can have, and why
        self.flaws = dict.fromkeys(FLAWS, 0)  # how many answers have each of wording.FLAWS, as their batches say
        self._ended = bytearray()
        """Of each row: 0 without an answer, 1 with one or a lasting error, 2 with an error for a passing reason."""

    def __len__(self) -> int:
        return len(self.errors)

    @abstractmethod
    def keep(self, row: int, body: Mapping[str, Any]) -> str | None:
        """Keep what a response's body holds. Return why it is no answer to the row; None if it is one."""

    def add(self) -> int:
        self.values.append(None)
        self.errors.append(None)
        self.tokens.append(None)
        self._ended.append(0)
        return len(self.errors) - 1

    def refuse(self, row: int, error: CellError) -> None:
        self.errors[row] = str(error)
        self._ended[row] = 1
        if error.code != "empty_value" and self.unusable is None:
            self.unusable = f"row {row + 1}: {error}"

    def take(self, lines: Iterable[bytes]) -> None:
        """Add answers and errors from the lines of an output or error file."""
        for line in lines:
            answer = answers.outcome(line)
            self.record(_row(answer.custom_id), answer)

    def record(self, row: int, answer: RowAnswer) -> None:
        self.errors[row] = answer.error if answer.body is None else self.keep(row, answer.body)
        self.tokens[row], self._ended[row] = answer.tokens, 1 + answer.passing

    def is_open(self, row: int) -> bool:
        """True for a row that has no answer, or an error for a passing reason."""
        return self._ended[row] != 1

    def close(self) -> None:
        """Note that rows whose answers are missing have none."""
        for row, ended in enumerate(self._ended):
            if not ended:
                self.errors[row] = GONE

    def warn(self) -> None:
        """Warn of rows without an answer, and of answers with flaws."""
        reasons = Counter(error for error in self.errors if error is not None)
        found = flaws(self.flaws)
        parts = []
        if reasons:
            reason, most = reasons.most_common(1)[0]
            rows = f"{reasons.total():,} of {len(self):,} rows have no answer"
            parts.append(f"{rows}; {most:,} of these: {cut(reason, MAX_LIST)} (details=True adds a column error)")
        if found:
            where = "; raise max_tokens; finish_reason=True adds a column" if self.flaws["cut_off"] else ""
            parts.append(f"of the answers, {found}{where}")
        if parts:
            warnings.warn(AnswerWarning("; ".join(parts), self.flaws), stacklevel=3)

    def details(self) -> dict[str, Column]:
        return {"error": Column(self.errors), "tokens": Column(self.tokens, "integer")}


def ask(
    server: ApiClient,
    spec: Mapping[str, Any],
    endpoint: str,
    lines: Iterator[bytes],
    results: RowResults,
    how: CallOptions,
) -> None:
    """Send the lines of requests, wait until all are answered, and put what became of each into `results`.

    `lines`: their rows are added to `results` as they are drawn.
    Raises ConfigurationError: no row can be sent. The same call goes on after an UnavailableError.
    """
    if spec["batchyard"]["simulated"]:
        click.echo(f"model {spec['id']} is simulated: no model has made these answers", err=True)
    with tempfile.TemporaryDirectory(prefix="batchyard-") as folder:
        files = _files(lines, Path(folder), how.name)
        call = _Call(server, spec, endpoint, results, how)
        again = "--again" if _in_terminal() else "again=True"
        remedy = f"{again} computes all of it anew" if how.progress else None
        batches = [batch for file in files for batch in call.batches(file, remedy)]
        if not batches and results.unusable is not None:
            raise ConfigurationError(f"no row can be sent; {results.unusable}")
        for batch in _wait(server, batches, how.progress):
            call.take(batch)
    results.close()


def ask_rows(
    model: str,
    endpoint: str,
    table: Iterable[Values],
    make: Callable[[Values], Mapping[str, Any]],
    results: RowResults,
    how: CallOptions,
) -> None:
    """Ask about each row, see `requests`, and put what became of it into `results`. Raises as `served` and `ask`."""
    server = how.connected()
    spec = served(server, model, endpoint)
    ask(server, spec, endpoint, requests(endpoint, table, make, results), results, how)


def plan_rows(
    model: str,
    endpoint: str,
    table: Iterable[Values],
    make: Callable[[Values], Mapping[str, Any]],
    results: RowResults,
    how: CallOptions,
) -> dict[str, Any]:
    """Have a sample of the rows answered, and return the plan of their batch, see `report`.

    Raises ConfigurationError: no row can be sent, or the rows do not fit in one batch. And as `served`.
    """
    server = how.connected()
    spec = served(server, model, endpoint)
    with tempfile.TemporaryDirectory(prefix="batchyard-") as folder:
        file = Path(folder) / f"{how.name}-1.jsonl"
        with file.open("wb") as stream:
            stream.writelines(requests(endpoint, table, make, results))
        if not file.stat().st_size:
            raise ConfigurationError(f"no row can be sent; {results.unusable or 'all have an empty cell'}")
        if len(results) > MAX_REQUESTS or file.stat().st_size > MAX_BYTES:
            raise ConfigurationError(f"the rows do not fit in one batch; plan at most {MAX_REQUESTS:,} of them")
        batch = next(_Call(server, spec, endpoint, results, how).batches(file, None))
    return report(server, sampled(server, batch))


def sampled(server: ApiClient, work: dict[str, Any]) -> dict[str, Any]:
    """Return a batch or a job with a plan once it is paused or has ended."""
    fetch = server.job if work["object"] == "job" else server.batch
    while work["status"] not in TERMINAL and work["batchyard"]["paused_at"] is None:
        time.sleep(PLAN_POLL_SECONDS)
        work = fetch(work["id"])
    return work


def report(server: ApiClient, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan of a batch; without answers and ranges if it has ended, since all its requests have an answer."""
    if batch["status"] not in TERMINAL:
        return server.call("GET", f"/batches/{batch['id']}/plan")
    counts, ours = batch["request_counts"], batch["batchyard"]
    found = {"failed": counts["failed"], **{name: ours[name] for name in FLAWS}}
    total = counts["total"] or 1
    shares = {name: dict.fromkeys(("share", "low", "high"), count / total) for name, count in found.items()}
    cost, sums = ours["cost"], ("sum", "low", "high")
    priced = cost is not None and not cost["unpriced_requests"]
    return {
        "object": "batch.plan",
        "batch_id": batch["id"],
        "models": [batch["model"]],
        "requests": counts["total"],
        "sampled": True,
        "sample": {"answered": counts["total"], "errors": {}, "odd": {}, "answers": []},
        "forecast": {
            "confidence": 1.0,
            "shares": shares,
            "tokens": {name: dict.fromkeys(sums, batch["usage"][name]) for name in ("input_tokens", "output_tokens")},
            "cost": {"currency": cost["currency"], **dict.fromkeys(sums, cost["amount"])} if priced else None,
            "seconds": dict.fromkeys(sums, 0.0),
            "hosted": {},
        },
    }


def rows(frame: Frame, columns: Iterable[str]) -> Iterator[Values]:
    cells = {column: frame.cells(column) for column in columns}
    for row in range(len(frame)):
        yield {column: of_column[row] for column, of_column in cells.items()}


def requests(
    endpoint: str, table: Iterable[Values], make: Callable[[Values], Mapping[str, Any]], results: RowResults
) -> Iterator[bytes]:
    """Yield the line of a request for each row; note in `results` why one makes none."""
    for values in table:
        row = results.add()
        try:
            yield request_line(row, endpoint, make(values))
        except CellError as error:
            results.refuse(row, error)


def request_line(row: int, endpoint: str, body: Mapping[str, Any]) -> bytes:
    return json_lines.line({"custom_id": f"row-{row}", "method": "POST", "url": endpoint, "body": body})


def template(text: str, what: str, columns: Sequence[str]) -> Template:
    """Return a template over these columns. Raises ConfigurationError. `what`: the option that has it."""
    try:
        parsed = Template(text)
        parsed.check(columns)
    except TemplateError as error:
        raise ConfigurationError(f"{what}: {error}") from None
    return parsed


def ordered(text: Template, table: Iterable[Values], *, without: Iterable[str] = (), say: bool) -> Template:
    """Return a template with all columns in the order that the rows decide, see `Template.ordered`."""
    if not text.is_open:
        return text
    try:
        text = text.ordered(table, without=set(without))
    except TemplateError as error:
        raise ConfigurationError(f"the template has {error}") from None
    if say and text.order is not None:
        click.echo(column_order(text.order), err=True)
    return text


def some_column(templates: Iterable[Template], columns: Sequence[str]) -> None:
    """Raise ConfigurationError if no template names a column: all rows would be one."""
    if not any(each.columns or each.has_all for each in templates):
        there = cut(", ".join(columns), MAX_LIST) or "none"
        raise ConfigurationError(
            f"template: it names no column in braces, so all rows are the same; available: {there}"
        )


def targets(cascade: str | None, **options: float | str | None) -> dict[str, Any]:
    """Return the targets that are set, as options of recipe `cascade`.

    Raises ConfigurationError: there is no `cascade`, or a target is out of range.

    `options`: targets, and names of columns, which also need a cascade.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if given and cascade is None:
        option = "--cascade" if _in_terminal() else "cascade="
        raise ConfigurationError(f"{next(iter(given))} needs a cascade: name the small model with {option}")
    given |= _range(given.pop("agree", None), given.pop("by", None))
    for name, value in given.items():
        if not isinstance(value, str) and not 0 < value < 1:
            raise ConfigurationError(f"{name}={value}: pass a share between 0 and 1, such as 0.95")
    return {name: value for name, value in given.items() if not isinstance(value, str) or name == "by"}


def _range(agree: Any, by: Any) -> dict[str, float | str]:
    """Return a target, or the ends of a range such as 0.9..0.98, and its deadline, such as the next 07:00."""
    low, dots, high = agree.partition("..") if isinstance(agree, str) else (agree, "", "")
    if bool(dots) != (by is not None):
        raise ConfigurationError("a range of agree, such as 0.9..0.98, goes together with by, such as 07:00")
    try:
        if by is None:
            return {} if low is None else {"agree": float(low) if isinstance(low, str) else low}
        if "-" in by:
            at = datetime.fromisoformat(by).astimezone()
        else:
            days = (date.today() + timedelta(days) for days in (0, 1))
            today, tomorrow = (datetime.combine(day, clock.fromisoformat(by)).astimezone() for day in days)
            at = today if today > datetime.now(UTC) else tomorrow
        if not float(low) < float(high):
            raise ValueError(f"{agree} does not rise")
        return {"agree": float(high), "lowest_agree": float(low), "by": at.isoformat()}
    except ValueError as error:
        raise ConfigurationError(f"agree or by: {error}; pass 0.95, or 0.9..0.98 and a time such as 07:00") from None


def _in_terminal() -> bool:
    """Return whether a command is running: it has options where a call has arguments."""
    return click.get_current_context(silent=True) is not None


def parameters(model: str, **values: Any) -> dict[str, Any]:
    """Return what the bodies of all requests have in common. Raises ConfigurationError if it is no JSON."""
    body = {"model": model, **{name: value for name, value in values.items() if value is not None}}
    if misplaced := next((name for name in _CASCADES if name in body), None):
        raise ConfigurationError(f"{misplaced} is an option of {_CASCADES[misplaced]}; leave it out here")
    try:
        json_lines.dumps(body)
    except orjson.JSONEncodeError as error:
        raise ConfigurationError(f"a parameter is no JSON: {error}") from error
    return body


def served(server: ApiClient, model: str, *endpoints: str) -> dict[str, Any]:
    """Return what the server says of a model."""
    models = {entry["id"]: entry for entry in server.models()}
    if model not in models:
        remedy = f"did you mean {close}?" if (close := nearest(model, models)) else "it serves"
        remedy = f"{NEWER}; it serves" if server.knows_too_late(model) else remedy
        raise ConfigurationError(f"{server.url} does not serve {quoted(model)}; {remedy} {', '.join(sorted(models))}")
    serves = models[model]["batchyard"]["endpoints"]
    if not set(endpoints) & set(serves):
        wanted = " or ".join(endpoints)
        raise ConfigurationError(
            f"model {model} does not answer on {wanted}, only on {', '.join(serves)}; name another"
        )
    return models[model]


def is_unsent(error: str) -> bool:
    """True for the error of a row that was not sent because it has an empty cell."""
    return error.startswith("column ") and error.endswith(" is empty")


def _files(lines: Iterator[bytes], folder: Path, name: str) -> Iterator[Path]:
    """Write lines to files within a batch's limits; delete each before the next."""
    line, number = next(lines, None), 0
    while line is not None:
        number += 1
        count = size = 0
        file = folder / f"{name}-{number}.jsonl"
        with file.open("wb") as stream:
            while line is not None and (count == 0 or (count < MAX_REQUESTS and size + len(line) <= MAX_BYTES)):
                stream.write(line)
                count, size = count + 1, size + len(line)
                line = next(lines, None)
        yield file
        file.unlink()


@dataclass
class _Call:
    """The batches of one call: earlier ones of the same rows, and new ones of what those leave open."""

    server: ApiClient
    spec: Mapping[str, Any]
    endpoint: str
    results: RowResults
    how: CallOptions

    def __post_init__(self) -> None:
        self._earlier = resume.Earlier(() if self.how.again else self.server.batches())
        self._taken = set[str]()

    def batches(self, file: Path, remedy: str | None) -> Iterator[dict[str, Any]]:
        """Yield all batches of a file, those that have ended with their answers taken."""
        while file.stat().st_size:
            mark = resume.fingerprint("map", resume.sha256(file), self.spec)
            batch = self._earlier.find(mark, remedy, without=self._taken)
            if batch is None:
                # A row that cannot run, such as one that is too long, keeps no other from its answer.
                with uploaded(self.server, self.server.upload(file)) as file_id:
                    batch = self.server.create(
                        file_id,
                        endpoint=self.endpoint,
                        completion_window=self.how.window,
                        metadata=mark,
                        on_invalid="skip",
                        plan=None if self.how.sample is None else {"rows": self.how.sample},
                    )
                yield batch
                return
            if self.how.sample is None and batch["batchyard"].get("plan"):
                batch = sampled(self.server, batch)
                if batch["batchyard"]["paused_by"] == "its plan":
                    batch = self.server.control(batch["id"], "resume")
            yield batch
            if batch["status"] not in TERMINAL:
                return
            self.take(batch)
            rest = file.with_name(f"{file.name}.rest")
            with file.open("rb") as lines, rest.open("wb") as stream:
                stream.writelines(
                    line for line in lines if self.results.is_open(_row(json_lines.loads(line)["custom_id"]))
                )
            rest.replace(file)

    def take(self, batch: dict[str, Any]) -> None:
        """Add the answers and errors of an ended batch once. Those of a file that is gone are missing."""
        if batch["id"] in self._taken:
            return
        self._taken.add(batch["id"])
        for name in FLAWS:
            self.results.flaws[name] += batch["batchyard"].get(name, 0)
        for file_id in filter(None, (batch["output_file_id"], batch["error_file_id"])):
            with suppress(NotFoundError):
                self.results.take(self.server.lines(file_id))


def _row(custom_id: str) -> int:
    return int(custom_id.removeprefix("row-"))


def _wait(server: ApiClient, batches: Iterable[dict[str, Any]], progress: bool) -> list[dict[str, Any]]:
    """Return the batches when all have ended. Raises RequestError as soon as the server has refused one."""
    latest = {batch["id"]: batch for batch in batches}

    def fetch() -> list[dict[str, Any]]:
        for batch_id, batch in latest.items():
            if batch["status"] not in TERMINAL:
                latest[batch_id] = batch = server.batch(batch_id)
            if batch["status"] == "failed":
                reasons = "; ".join(problems(batch, 1)) or "no reason"
                raise RequestError(f"batch {batch_id} of the rows is refused: {reasons}")
        unfinished = [batch for batch in latest.values() if batch["status"] not in TERMINAL]
        etas = [batch["batchyard"]["eta_seconds"] for batch in unfinished]
        counted = [batch["request_counts"] for batch in latest.values()]
        sums = {
            "status": unfinished[0]["status"] if unfinished else "completed",
            "request_counts": {key: sum(map(itemgetter(key), counted)) for key in ("total", "completed", "failed")},
            "eta_seconds": None if None in etas else max(etas, default=None),
        }
        return [sums]

    interrupted = partial(resume.goes_on, server, latest.values())
    follow(fetch, lambda sums: _drawn(sums[0]), _drawn, interrupted, quiet=not progress)
    return list(latest.values())


def _drawn(sums: dict[str, Any]) -> str:
    eta = sums["eta_seconds"]
    text = f"{sums['status']:11}  {bar(sums)}{labelled(sums)}"
    return text if eta is None else f"{text}  done in {durations.text(eta)}"
