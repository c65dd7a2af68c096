"""`batchyard.map`: a request for each row of a table, and its answers as a column of the table's kind."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import orjson
from pydantic import BaseModel

from batchyard import durations, json_lines, settings
from batchyard.client import answers, frames, resume
from batchyard.client.answers import RowAnswer, Structure
from batchyard.client.api import ApiClient, connect
from batchyard.client.frames import Column, Frame
from batchyard.client.progress import bar, counts, follow, problems
from batchyard.endpoints.catalog import CHAT
from batchyard.errors import ConfigurationError, NotFoundError, RequestError
from batchyard.statuses import TERMINAL
from batchyard.tables.cells import CellError
from batchyard.tables.template import Template, TemplateError
from batchyard.wording import MAX_LIST, cut, nearest, quoted

MAX_REQUESTS = 50_000
MAX_BYTES = 200_000_000
"""Of one batch: OpenAI's limits, which are this server's defaults. More rows become several batches."""
DETAILS = ("error", "tokens")
GONE = "the file with its answer was deleted or has expired; the same call again computes it"


def map(
    data: Any,
    template: str,
    *,
    model: str,
    system: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    schema: type[BaseModel] | Mapping[str, Any] | None = None,
    response_format: Mapping[str, Any] | None = None,
    window: str = "24h",
    details: bool = False,
    again: bool = False,
    progress: bool = True,
    server: ApiClient | None = None,
    name: str = "map",
    **parameters: Any,
) -> Any:
    """Ask a model about each row of a table, and return the answers in the order of the rows.

    The same call again, also after a crash, takes up the batches of the first: nothing is computed twice. Rows that
    failed for a passing reason, or whose answers were deleted meanwhile, are asked again, and only those.
    A row with an empty cell (None, NaN, NA, no text) in a column that a template names is not sent.

    Args:
        data: a DataFrame of pandas or polars, a table of pyarrow or of a library that exports Arrow's, a Dataset of
            Hugging Face, or a list of dicts. It is not changed.
        template: the user's message, with columns in braces: "Translate {text} to {lang}". `{{` and `}}` are braces.
            "{photo:image} What is this?" sends bytes, images of PIL or URLs in a column as images.
        system: a template of the system's message.
        schema: a class of pydantic or a JSON schema of an object. Answers have this form, and become its columns.
        response_format: another form of answers, as OpenAI's API has it.
        window: until when all must be answered, such as "24h".
        details: return a table with columns `error` and `tokens` beside the answers.
        again: compute everything anew, also where the same was asked before.
        progress: say on standard error how far it is: a bar in a terminal, elsewhere a line every ten seconds.
        server: by default the one that BATCHYARD_URL names, or the local stack in ./data.
        name: of the batches' input files.
        parameters: any others of the requests' bodies, such as `seed`, `top_p` or `max_completion_tokens`. A row has
            one answer, so `n` is 1; for several samples of a prompt see recipe `rollout`.

    Returns:
        A column: a Series of pandas, which has the table's index, or of polars, a ChunkedArray, or a list for a dataset
        or a list. With `schema` or `details` a table of the kind of `data`, its columns those of the schema, or
        `answer`; then `error` and `tokens`. What has no answer is None, or what the library has for it.

    Raises:
        ConfigurationError: a template, the schema or the table cannot be used; or no server is known. Nothing was sent.
        RequestError: the server refuses the requests.
        UnavailableError: the server cannot be reached; the same call goes on once it can.
    """
    frame = frames.of(data)
    messages = _messages(frame, template, system)
    structure = None
    if schema is not None:
        structure = _structure(schema, response_format, details)
        response_format = structure.response_format
    body = _body(model, temperature=temperature, max_tokens=max_tokens, response_format=response_format, **parameters)
    server = server or connect(settings.load().data, "BATCHYARD_DATA")
    spec = served(server, model)
    if spec["batchyard"]["simulated"]:
        click.echo(f"model {model} is simulated: no model has made these answers", err=True)
    results = RowResults(len(frame))
    with tempfile.TemporaryDirectory(prefix="batchyard-") as folder:
        files = _files(_lines(frame, messages, body, results), Path(folder), name)
        call = _Call(server, spec, window, results, scratch=Path(folder) / "answers.jsonl", again=again)
        batches = call.batches(files, "`again` computes all of it anew" if progress else None)
        if not batches and results.unusable is not None:
            raise ConfigurationError(f"no row can be sent; {results.unusable}")
        for batch in _wait(server, batches, progress):
            call.take(batch)
    columns = results.columns(structure)
    if details:
        return frame.table({**columns, "error": Column(results.errors), "tokens": Column(results.tokens, "integer")})
    return frame.column("answer", columns["answer"]) if structure is None else frame.table(columns)


async def amap(data: Any, template: str, **options: Any) -> Any:
    """Do what `map` does in a thread, so that the event loop goes on meanwhile."""
    return await asyncio.to_thread(map, data, template, **options)


def is_unsent(error: str) -> bool:
    """True for the error of a row that was not sent because it has an empty cell."""
    return error.startswith("column ") and error.endswith(" is empty")


class RowResults:
    """What became of each row: its text or why it has none, and its tokens.

    Attributes:
        unusable: the first row with a cell that no prompt can have, and why.
    """

    def __init__(self, rows: int) -> None:
        self.answers: list[RowAnswer | None] = [None] * rows
        self.errors: list[str | None] = [None] * rows
        self.tokens: list[int | None] = [None] * rows
        self.unusable: str | None = None

    def refuse(self, row: int, error: CellError) -> None:
        """Note why a row makes no request."""
        self.errors[row] = str(error)
        if error.code != "empty_value" and self.unusable is None:
            self.unusable = f"row {row}: {error}"

    def take(self, lines: Iterable[bytes]) -> None:
        """Add answers and errors from the lines of an output or error file."""
        for line in lines:
            answer = answers.read(line)
            row = _row(answer.custom_id)
            self.answers[row], self.errors[row], self.tokens[row] = answer, answer.error, answer.tokens

    def is_open(self, row: int) -> bool:
        """True for a row that has no answer, or an error for a passing reason."""
        answer = self.answers[row]
        return answer is None or answer.passing

    def columns(self, structure: Structure | None) -> dict[str, Column]:
        """Return the texts of the answers, or their properties by `structure`, and note the errors of those."""
        for row, answer in enumerate(self.answers):
            if answer is None and self.errors[row] is None:
                self.errors[row] = GONE
        if structure is None:
            return {"answer": Column([answer and answer.text for answer in self.answers])}
        columns = {name: Column([None] * len(self.answers), kind) for name, kind in structure.columns.items()}
        for row, answer in enumerate(self.answers):
            if answer is not None:
                properties, self.errors[row] = structure.parse(answer)
                for name, column in columns.items():
                    column.values[row] = properties.get(name)
        return columns


def _messages(frame: Frame, template: str, system: str | None) -> list[tuple[str, Template]]:
    """Return the roles and templates of a request's messages. Raises ConfigurationError."""
    messages = [("user", _parsed(template, "template", frame))]
    if system is not None:
        messages.insert(0, ("system", _parsed(system, "system", frame)))
        if messages[0][1].images:
            raise ConfigurationError("system: images stand in the user's message; name them in template")
    if not any(message.columns for _, message in messages):
        columns = cut(", ".join(frame.columns), MAX_LIST) or "none"
        raise ConfigurationError(f"template: it names no column in braces, so all rows are one; there are {columns}")
    return messages


def _parsed(text: str, what: str, frame: Frame) -> Template:
    try:
        template = Template(text)
        template.check(frame.columns)
    except TemplateError as error:
        raise ConfigurationError(f"{what}: {error}") from None
    return template


def _structure(
    schema: type[BaseModel] | Mapping[str, Any], response_format: Mapping[str, Any] | None, details: bool
) -> Structure:
    """Return the form of answers. Raises ConfigurationError if it does not go with the other options."""
    structure = Structure(schema)
    if response_format is not None:
        raise ConfigurationError("schema and response_format both say what answers look like; pass one of them")
    if details and (clash := [column for column in DETAILS if column in structure.columns]):
        raise ConfigurationError(f"schema: its property {clash[0]} has the name of a column of the details; rename it")
    return structure


def _body(model: str, **parameters: Any) -> dict[str, Any]:
    """Return the body of each request but for its messages.

    Raises:
        ConfigurationError: it is no JSON, or asks for several answers to each row.
    """
    if parameters.get("n") not in (None, 1):
        raise ConfigurationError(
            f"n={parameters['n']}: a row has one answer; repeat the rows, or take recipe rollout, which samples n times"
        )
    body = {"model": model, **{name: value for name, value in parameters.items() if value is not None}}
    try:
        orjson.dumps(body)
    except orjson.JSONEncodeError as error:
        raise ConfigurationError(f"a parameter is no JSON: {error}") from error
    return body


def served(server: ApiClient, model: str) -> dict[str, Any]:
    """Return what the server says of a model. Raises ConfigurationError if it does not serve chats with it."""
    models = {entry["id"]: entry for entry in server.models()}
    if model not in models:
        remedy = f"did you mean {close}?" if (close := nearest(model, models, 0.6)) else "it serves"
        raise ConfigurationError(f"{server.url} does not serve {quoted(model)}; {remedy} {', '.join(sorted(models))}")
    endpoints = models[model]["batchyard"]["endpoints"]
    if CHAT.path not in endpoints:
        raise ConfigurationError(f"model {model} does not take chats, only {', '.join(endpoints)}; name another")
    return models[model]


def _lines(
    frame: Frame, messages: Sequence[tuple[str, Template]], body: Mapping[str, Any], results: RowResults
) -> Iterator[bytes]:
    """Yield a request for each row; note in `results` why one makes none."""
    cells = {column: frame.cells(column) for _, message in messages for column in message.columns}
    for row in range(len(frame)):
        values = {column: of_column[row] for column, of_column in cells.items()}
        try:
            chat = [{"role": role, "content": message.fill(values)} for role, message in messages]
        except CellError as error:
            results.refuse(row, error)
            continue
        request = {"custom_id": f"row-{row}", "method": "POST", "url": CHAT.path, "body": {**body, "messages": chat}}
        yield json_lines.line(request)


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


class _Call:
    """The batches of one call: earlier ones of the same rows, and new ones of what those leave open."""

    def __init__(
        self,
        server: ApiClient,
        spec: Mapping[str, Any],
        window: str,
        results: RowResults,
        *,
        scratch: Path,
        again: bool,
    ) -> None:
        self._server = server
        self._spec = spec
        self._window = window
        self._results = results
        self._scratch = scratch
        self._earlier = resume.Earlier(() if again else server.batches())
        self._taken: set[str] = set()

    def batches(self, files: Iterable[Path], remedy: str | None) -> list[dict[str, Any]]:
        """Return all batches of the files, those that have ended with their answers taken.

        `remedy`: see resume.Earlier.find.
        """
        return [batch for file in files for batch in self._of(file, remedy)]

    def _of(self, file: Path, remedy: str | None) -> Iterator[dict[str, Any]]:
        while file.stat().st_size:
            mark = resume.fingerprint("map", resume.sha256(file), self._spec)
            batch = self._earlier.find(mark, remedy, without=self._taken)
            if batch is None:
                # A row that cannot run, such as one that is too long, keeps no other from its answer.
                upload = self._server.upload(file)
                yield self._server.create(
                    upload, endpoint=CHAT.path, window=self._window, metadata=mark, on_invalid="skip"
                )
                return
            yield batch
            if batch["status"] not in TERMINAL:
                return
            self.take(batch)
            self._keep_open(file)

    def take(self, batch: dict[str, Any]) -> None:
        """Add the answers and errors of an ended batch once. Those of a file that is gone are missing."""
        if batch["id"] in self._taken:
            return
        self._taken.add(batch["id"])
        for file_id in filter(None, (batch["output_file_id"], batch["error_file_id"])):
            try:
                self._server.download(file_id, self._scratch)
            except NotFoundError:
                continue
            with self._scratch.open("rb") as lines:
                self._results.take(lines)

    def _keep_open(self, file: Path) -> None:
        """Leave in a file of requests those that are still open."""
        rest = file.with_name(f"{file.name}.rest")
        with file.open("rb") as lines, rest.open("wb") as stream:
            stream.writelines(line for line in lines if self._results.is_open(_row(orjson.loads(line)["custom_id"])))
        rest.replace(file)


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
        return [_sum(latest.values())]

    follow(fetch, lambda sums: _drawn(sums[0]), _drawn, quiet=not progress)
    return list(latest.values())


def _sum(batches: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return status, counts and ETA of several batches as of one."""
    all_of_them = list(batches)
    counts = {
        key: sum(batch["request_counts"][key] for batch in all_of_them) for key in ("total", "completed", "failed")
    }
    unfinished = [batch for batch in all_of_them if batch["status"] not in TERMINAL]
    etas = [batch["batchyard"]["eta_seconds"] for batch in unfinished]
    return {
        "status": unfinished[0]["status"] if unfinished else "completed",
        "request_counts": counts,
        "eta_seconds": None if None in etas else max(etas, default=None),
    }


def _drawn(sums: dict[str, Any]) -> str:
    eta = sums["eta_seconds"]
    text = f"{sums['status']:11}  {bar(sums)}  {counts(sums)}"
    return text if eta is None else f"{text}  done in {durations.text(eta)}"
