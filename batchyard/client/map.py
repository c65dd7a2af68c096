"""`batchyard.map`: a request for each row of a table, and its answers as a column of the table's kind."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from batchyard import durations, json_lines
from batchyard.client import answers, asking, frames, resume
from batchyard.client.answers import RowAnswer, Structure
from batchyard.client.api import ApiClient, uploaded
from batchyard.client.asking import DETAILS, CallOptions, RowResults
from batchyard.client.frames import Column, Frame
from batchyard.client.progress import follow, problems
from batchyard.endpoints.catalog import CHAT, EMBEDDINGS
from batchyard.errors import ConfigurationError, RequestError
from batchyard.statuses import TERMINAL
from batchyard.tables.cells import CellError, json_value
from batchyard.wording import quoted, suggestion

CASCADE, ANSWERS = "cascade", "answers.jsonl"
LABEL_TOKENS = 64
"""Most tokens of a label that nothing holds an engine to."""
Make = Callable[[asking.Values], Mapping[str, Any]]


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
    finish_reason: bool = False,
    again: bool = False,
    progress: bool = True,
    server: ApiClient | None = None,
    name: str = "map",
    cascade: str | None = None,
    agree: float | str | None = None,
    by: str | None = None,
    confidence: float | None = None,
    truth: str | None = None,
    **parameters: Any,
) -> Any:
    """Ask a model about each row of a table, and return the answers in the order of the rows.

    The same call again, also after a crash, takes up the batches of the first: nothing is computed twice. Rows that
    failed for a passing reason, or whose answers were deleted meanwhile, are asked again, and only those.
    A row with an empty cell (None, NaN, NA, no text) in a column that a template names is not sent. A warning counts
    rows without an answer, and answers that were cut off or are empty.

    Args:
        data: a DataFrame of pandas or polars, a table of pyarrow or of a library that exports Arrow's, a Dataset of
            Hugging Face, or a list of dicts. It is not changed.
        template: the user's message, with columns in braces: "Translate {text} to {lang}". `{{` and `}}` are braces.
            "Is this review positive?\n{*}" has all columns that neither template names, as lines `name: value`, in an
            order in which prompts share most. "{photo:image} What is this?" sends bytes, images of PIL or URLs in a
            column as images.
        system: a template of the system's message.
        schema: a class of pydantic or a JSON schema of an object. Answers have this form, and become its columns.
        response_format: another form of answers, as OpenAI's API has it.
        window: until when all must be answered, such as "24h".
        details: return a table with columns `error` and `tokens` beside the answers.
        finish_reason: return a table with a column that has why each answer ended: `length` if it was cut off.
        again: compute everything anew, also where the same was asked before.
        progress: say on standard error how far it is: a bar in a terminal, elsewhere a line every ten seconds.
        server: by default the one that BATCHYARD_URL names, or the local stack in ./data.
        name: of the batches' input files.
        cascade: a smaller model for rows on which it agrees with `model`, or several: "nano,mini". Details have more.
        agree: minimum share of rows with the answer of `model`; default 0.95 with a cascade; with `by` "0.9..0.98".
        by: time such as "07:00". Of the range, the highest share is taken that is forecast to be done by then.
        confidence: minimum probability that `agree` is reached; default 0.95 with a cascade.
        truth: with `cascade`, a column with known answers; standard error has how many answers equal them.
        parameters: others of the requests' bodies, such as `seed`. For several answers of a row see recipe `rollout`.

    Returns:
        A column: a Series of pandas, which has the table's index, or of polars, a ChunkedArray, or a list for a dataset
        or a list. With `schema` or `details` a table of the kind of `data`, its columns those of the schema, or
        `answer`; then `error` and `tokens`. What has no answer is None, or what the library has for it.

    Raises:
        ConfigurationError: a template, the schema or the table cannot be used; or no server is known. Nothing was sent.
        RequestError: the server refuses the requests.
        UnavailableError: the server cannot be reached; the same call goes on once it can.
    """
    structure = _structure(schema, response_format, details)
    body = _body(model, structure, response_format, temperature, max_tokens, parameters)
    how = asking.CallOptions(window=window, again=again, progress=progress, server=server, name=name)
    are_texts = structure is None and response_format is None and not finish_reason
    targets = asking.targets(cascade, agree=agree, by=by, confidence=confidence, truth=truth)
    if cascade is not None and not are_texts:
        raise ConfigurationError("cascade: its answers are plain texts; leave out forms of answers and finish_reason")
    results = TextResults() if cascade is None else CascadeResults({"proxy": cascade, **targets}, data, truth=truth)
    frame = ask(results, data, template, system, body, how)
    columns = results.columns(structure)
    results.warn()
    if details or finish_reason:
        beside = {"finish_reason": results.finish_reasons()} if finish_reason else {}
        return frame.table({**columns, **beside, **(results.details() if details else {})})
    return frame.column("answer", columns["answer"]) if structure is None else frame.table(columns)


async def amap(data: Any, template: str, **options: Any) -> Any:
    """Do what `map` does in a thread, so that the event loop goes on meanwhile."""
    return await asyncio.to_thread(map, data, template, **options)


def plan(
    data: Any,
    template: str,
    *,
    model: str | Sequence[str],
    rows: int = 100,
    system: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    schema: type[BaseModel] | Mapping[str, Any] | None = None,
    response_format: Mapping[str, Any] | None = None,
    window: str = "24h",
    details: bool = False,
    finish_reason: bool = False,
    again: bool = False,
    progress: bool = True,
    server: ApiClient | None = None,
    name: str = "map",
    **parameters: Any,
) -> Any:
    """Answer a random sample of a table's rows, and forecast the rest.

    To answer the other rows, call `map` with the same arguments. `details` and `finish_reason` have no effect here.

    Args:
        model: a model, or a list of models, which answer the same sample.
        rows: size of the sample, 1 to 1,000.

    Returns:
        The report of GET /v1/batches/{id}/plan, with `sample` and `forecast`; None if all rows are answered already,
        for example because the sample is the whole table. For a list of models, a list of reports without None.

    Raises:
        ConfigurationError: as `map`; or the rows do not fit in one batch.
        RequestError, UnavailableError: as `map`.
    """
    structure = _structure(schema, response_format, details)
    how = asking.CallOptions(window=window, again=again, progress=progress, server=server, name=name, sample=rows)
    models = [model] if isinstance(model, str) else [*model]
    bodies = [_body(one, structure, response_format, temperature, max_tokens, parameters) for one in models]
    if len(models) > 1:
        for one in models:
            asking.served(how.connected(), one, CHAT.path)
    reports = []
    for body in bodies:
        _, table, make = _prepared(data, template, system, body, how)
        reports.append(asking.plan_rows(body["model"], CHAT.path, table, make, TextResults(), how))
    if not isinstance(model, str):
        return reports
    (report,) = reports
    return None if report["sample"]["answered"] == report["requests"] else report


def ask(
    results: TextResults, data: Any, template: str, system: str | None, body: Mapping[str, Any], how: CallOptions
) -> Frame:
    """Ask about each row of `data`, and return it as a frame. `body`: what all requests have in common."""
    frame, table, make = _prepared(data, template, system, body, how)
    results.ask(body["model"], table, make, how)
    return frame


def _prepared(
    data: Any, template: str, system: str | None, body: Mapping[str, Any], how: CallOptions
) -> tuple[Frame, Iterator[asking.Values], Make]:
    """Return the frame of `data`, the cells of each row that its request needs, and what makes the request's body."""
    frame = frames.of(data)
    messages = [("user", asking.template(template, "template", frame.columns))]
    if system is not None:
        messages.insert(0, ("system", asking.template(system, "system", frame.columns)))
        if messages[0][1].images:
            raise ConfigurationError("system: images stand in the user's message; name them in template")
    asking.some_column([text for _, text in messages], frame.columns)
    if sum(text.has_all for _, text in messages) > 1:
        raise ConfigurationError("system: all columns stand in template already; take {*} out of one of the two")
    named = [column for _, text in messages for column in text.columns]
    texts = [
        (role, asking.ordered(text, asking.rows(frame, frame.columns), without=named, say=how.progress))
        for role, text in messages
    ]

    def make(values: asking.Values) -> Mapping[str, Any]:
        return {**body, "messages": [{"role": role, "content": text.fill(values)} for role, text in texts]}

    return frame, asking.rows(frame, [column for _, text in texts for column in text.needed(frame.columns)]), make


def labelled(
    data: Any,
    template: str,
    system: str,
    model: str,
    options: Mapping[str, Any],
    how: CallOptions,
    data_columns: Mapping[str, str | None],
    parameters: Mapping[str, Any],
) -> tuple[Frame, dict[str, Column]]:
    """Label each row of `data` by a cascade. `data_columns`: options that name columns of `data`.

    Return the table, and the columns answer, answered_by, confidence, error and tokens.
    """
    how = replace(how, server=how.connected())
    proxies = [] if data_columns.get("scores") else options["proxy"].split(",")
    specs = _models(how.connected(), model, proxies, CHAT.path, EMBEDDINGS.path)
    embedding = [name for name, spec in specs.items() if CHAT.path not in spec["endpoints"]]
    if len(embedding) > 1:
        raise ConfigurationError(f"cascade: {' and '.join(embedding)} are embedding models; name one of them")
    if embedding:
        chats = ",".join(name for name in specs if name not in (model, *embedding))
        options = {**options, "proxy": chats, "embedding": embedding[0]}
    structured = all("choice" in spec["answer_forms"] for name, spec in specs.items() if name not in embedding)
    results = CascadeResults({**options, "structured": structured}, data, **data_columns)
    body = asking.parameters(model, **{"temperature": 0, "max_tokens": LABEL_TOKENS, **parameters})
    frame = ask(results, data, template, system, body, how)
    results.warn()
    return frame, {**results.columns(None), **results.details()}


def _models(server: ApiClient, model: str, proxies: Sequence[str], *endpoints: str) -> dict[str, Mapping[str, Any]]:
    """Return what the server says of a cascade's models.

    The large one is first. `endpoints`: those of which the small ones need one.
    """
    specs = {model: asking.served(server, model, CHAT.path)["batchyard"]}
    for name in (each.strip() for each in proxies):
        if name in specs:
            raise ConfigurationError(f"cascade: {name} is named twice; name smaller models than {model}, each once")
        specs[name] = asking.served(server, name, *endpoints)["batchyard"]
    return specs


class TextResults(RowResults):
    """The texts of the answers, each a RowText."""

    def ask(self, model: str, rows: Iterable[asking.Values], make: Make, how: CallOptions) -> None:
        """Ask about each row, see `asking.ask_rows`. `make` returns the body of a row's request."""
        asking.ask_rows(model, CHAT.path, rows, make, self, how)

    def keep(self, row: int, body: Mapping[str, Any]) -> str | None:
        self.values[row] = text = answers.text(body)
        return text.error

    def finish_reasons(self) -> Column:
        """Return why each answer ended, None where nobody knows."""
        return Column([text and text.finish_reason for text in self.values])

    def columns(self, structure: Structure | None) -> dict[str, Column]:
        """Return the texts of the answers, or their properties by `structure`, and note the errors of those."""
        if structure is None:
            return {"answer": Column([text and text.text for text in self.values])}
        columns = {name: Column([None] * len(self), kind) for name, kind in structure.columns.items()}
        for row, text in enumerate(self.values):
            if text is not None:
                properties, self.errors[row] = structure.parse(text)
                for name, column in columns.items():
                    column.values[row] = properties.get(name)
        return columns


def _structure(
    schema: type[BaseModel] | Mapping[str, Any] | None, response_format: Mapping[str, Any] | None, details: bool
) -> Structure | None:
    if schema is None:
        return None
    structure = Structure(schema)
    if response_format is not None:
        raise ConfigurationError("schema and response_format both say what answers look like; pass one of them")
    if details and (clash := [column for column in DETAILS if column in structure.columns]):
        raise ConfigurationError(f"schema: its property {clash[0]} has the name of a column of the details; rename it")
    return structure


def _body(
    model: str,
    structure: Structure | None,
    response_format: Mapping[str, Any] | None,
    temperature: float | None,
    max_tokens: int | None,
    parameters: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what all requests have in common. Its order stays: a call takes up batches of the same bytes."""
    if parameters.get("n") not in (None, 1):
        raise ConfigurationError(
            f"n={parameters['n']}: a row has one answer; repeat the rows, or take recipe rollout, which samples n times"
        )
    form = response_format if structure is None else structure.response_format
    return asking.parameters(model, temperature=temperature, max_tokens=max_tokens, response_format=form, **parameters)


class CascadeResults(TextResults):
    """The answers of a job of recipe `cascade`, each a line of ANSWERS.

    Args:
        options: of the recipe, without the model and the parameters.
        columns: options that name columns of `data`, which the job gets under the options' names.
    """

    def __init__(self, options: Mapping[str, Any], data: Any = None, **columns: str | None) -> None:
        super().__init__()
        given = {option: name for option, name in columns.items() if name is not None}
        self._options = {**options, **{option: option for option in given}}
        self._columns: dict[str, Sequence[Any]] = {}
        for option, name in given.items():
            frame = frames.of(data)
            if name not in frame.columns:
                raise ConfigurationError(f"{option}: no column {quoted(name)}; {suggestion(name, frame.columns)}")
            self._columns[option] = frame.cells(name)

    def keep(self, row: int, body: Mapping[str, Any]) -> str | None:
        self.values[row] = body
        return None

    def columns(self, structure: Structure | None) -> dict[str, Column]:
        return {"answer": self._column("answer")}

    def details(self) -> dict[str, Column]:
        """Return which model answered each row, how sure the small one was, and what all details have."""
        by, confidence = self._column("answered_by"), self._column("confidence", "number")
        return {"answered_by": by, "confidence": confidence, **super().details()}

    def ask(self, model: str, rows: Iterable[asking.Values], make: Make, how: CallOptions) -> None:
        """Run the job, or take up an earlier one. All requests have the same parameters."""
        server = how.connected()
        if "labels" not in self._options:
            _models(server, model, self._options["proxy"].split(","), CHAT.path)
        with tempfile.TemporaryDirectory(prefix="batchyard-") as folder:
            file = Path(folder) / f"{how.name}.jsonl"
            parameters = self._write(file, rows, make)
            if parameters is None:
                raise ConfigurationError(f"no row can be sent; {self.unusable or 'all have an empty cell'}")
            job = _job(server, file, how, {"model": model, "sampling": parameters, **self._options})
        artifact = next((each for each in job["batchyard"]["artifacts"] if each["name"] == ANSWERS), None)
        if artifact is None or _is_unfinished(job):
            reasons = [*problems(job, 1), *(warning["message"] for warning in job["batchyard"]["warnings"])]
            reason = "; ".join(reasons) or "no reason"
            raise RequestError(f"job {job['id']} of the rows is {job['status']}: {reason}")
        for line in (json_lines.loads(line) for line in server.lines(artifact["file_id"])):
            name, failure = line["custom_id"], line["error"]
            why = f"{failure['code']}: {failure['message']}" if failure else None
            answer = RowAnswer(name, None if failure else line, why, line["tokens"])
            self.record(int(name.removeprefix("row-")), answer)
        self.close()
        metrics, simulated = job["batchyard"]["metrics"], " (simulated)" if job["batchyard"]["simulated"] else ""
        proxy = metrics.get("chosen_proxy", self._options["proxy"] or self._options["embedding"])
        said = f"{proxy} answered {metrics['proxy']:,} of {metrics['rows']:,} rows{simulated}"
        said += f", agree={metrics['agree']:g}" if "by" in self._options else ""
        known = ", ".join(
            f"{name} {share['mean']:.1%} of {share['n']:,}"
            for name, share in metrics.get("truth", {}).items()
            if share["n"]
        )
        truth = [f"right by the known answers: {known}"] if known else []
        for text in (said, *truth, *(warning["message"] for warning in job["batchyard"]["warnings"])):
            click.echo(f"cascade: {text}", err=True)

    def _write(self, file: Path, rows: Iterable[asking.Values], make: Make) -> dict[str, Any] | None:
        """Write the input of the job. Return the parameters of its requests, None without any."""
        parameters = None
        with file.open("wb") as stream:
            for values in rows:
                row = self.add()
                try:
                    parameters = dict(make(values))
                except CellError as error:
                    self.refuse(row, error)
                    continue
                beside = {option: json_value(column[row], option) for option, column in self._columns.items()}
                messages = parameters.pop("messages")
                stream.write(json_lines.line({"custom_id": f"row-{row}", "messages": messages, **beside}))
        return parameters and {name: value for name, value in parameters.items() if name != "model"}

    def _column(self, name: str, kind: Any = "string") -> Column:
        return Column([line and line.get(name) for line in self.values], kind)


def _job(server: ApiClient, file: Path, how: CallOptions, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job of the rows, an earlier one of the same call or a new one, when it has ended."""
    known_by = {name: value for name, value in options.items() if name != "by"}  # tomorrow's 07:00 is another time
    mark = resume.mark(server, "map", resume.sha256(file), known_by)
    earlier = resume.Earlier(() if how.again else server.jobs(recipe=CASCADE))
    job = earlier.find(mark, resume.AGAIN if how.progress else None)
    if job is None or _is_unfinished(job):  # a new job takes the rounds that have completed
        with uploaded(server, server.upload(file, "user_data")) as file_id:
            again = {"reuse": False} if how.again else {}
            job = server.create_job(
                recipe=CASCADE,
                input_file_id=file_id,
                options={**options, **again},
                completion_window=how.window,
                metadata=mark,
            )
    latest, target = [job], None

    def fetch() -> list[dict[str, Any]]:
        nonlocal target
        if latest[0]["status"] not in TERMINAL:
            latest[0] = server.job(latest[0]["id"])
            if "by" in options and target is None and (target := _target(server, latest[0])):
                click.echo(f"cascade: {target}", err=True)
        return latest

    interrupted = partial(resume.goes_on, server, latest)
    return follow(fetch, lambda jobs: _drawn(jobs[0]), _drawn, interrupted, quiet=not how.progress)[0]


def _is_unfinished(job: Mapping[str, Any]) -> bool:
    """True for a job that has ended without the answers of its last round."""
    return job["status"] in TERMINAL and "rows" not in (job["batchyard"]["metrics"] or {})


def _target(server: ApiClient, job: Mapping[str, Any]) -> str | None:
    """Return the target that a job has chosen for its deadline, None while its sample is not answered."""
    reports = (child["batchyard"]["metrics"] or {} for child in server.jobs(parent_id=job["id"]))
    chosen = next((report for report in reports if "eta_seconds" in report), None)
    return None if chosen is None else f"agree={chosen['agree']:g}, done in {durations.text(chosen['eta_seconds'])}"


def _drawn(job: Mapping[str, Any]) -> str:
    counts = job["request_counts"]
    return f"{job['status']:11}  {counts['completed']} of at most {counts['total']} rounds have ended"
