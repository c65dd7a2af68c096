"""`batchyard.map`: a request for each row of a table, and its answers as a column of the table's kind."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from batchyard.client import answers, asking, frames
from batchyard.client.answers import RowText, Structure
from batchyard.client.api import ApiClient
from batchyard.client.asking import DETAILS, RowResults
from batchyard.client.cascade import CascadeResults, Make
from batchyard.client.frames import Column, Frame
from batchyard.endpoints.catalog import CHAT
from batchyard.errors import ConfigurationError
from batchyard.tables.template import Template


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
    agree: float | None = None,
    confidence: float | None = None,
    **parameters: Any,
) -> Any:
    """Ask a model about each row of a table, and return the answers in the order of the rows.

    The same call again, also after a crash, takes up the batches of the first: nothing is computed twice. Rows that
    failed for a passing reason, or whose answers were deleted meanwhile, are asked again, and only those.
    A row with an empty cell (None, NaN, NA, no text) in a column that a template names is not sent. A warning counts
    rows without an answer, and answers that were cut off, are empty, or lack the form that was asked for.

    Args:
        data: a DataFrame of pandas or polars, a table of pyarrow or of a library that exports Arrow's, a Dataset of
            Hugging Face, or a list of dicts. It is not changed.
        template: the user's message, with columns in braces: "Translate {text} to {lang}". `{{` and `}}` are braces.
            "Is this review positive?\n{*}" has all columns that neither template names, as lines `name: value`, in an
            order in which prompts share most. "{photo:image} What is this?" sends bytes, PIL images or URLs as images.
        system: a template of the system's message.
        schema: a class of pydantic or a JSON schema of an object. Answers have this form, and become its columns.
        response_format: another form of answers, as OpenAI's API has it.
        window: until when all must be answered, such as "24h".
        details, finish_reason: return a table with columns `error` and `tokens`, or with why each answer ended.
        again: compute everything anew, also where the same was asked before.
        progress: say on standard error how far it is: a bar in a terminal, elsewhere a line every ten seconds.
        server, name: by default the one that BATCHYARD_URL names, or the local stack in ./data; of the input files.
        cascade: a smaller model for the rows on which it agrees with `model` (recipe `cascade`). The details then have
            `answered_by` and `confidence`, too.
        agree, confidence: with `cascade`, the share of rows with the answer of `model`, and its probability [0.95].
        parameters: any others of the requests' bodies, such as `seed`, `top_p` or `max_completion_tokens`. A row has
            one answer, so `n` is 1; for several samples of a prompt see recipe `rollout`.

    Returns:
        A column: a Series of pandas, which has the table's index, or of polars, a ChunkedArray, or a list. With
        `schema` or `details` a table of the kind of `data`, with the columns of the schema, or `answer`; then `error`
        and `tokens`. A row without an answer has None, or what the library has for it.

    Raises:
        ConfigurationError: a template, the schema or the table cannot be used; or no server is known. Nothing was sent.
        RequestError: the server refuses the requests.
        UnavailableError: the server cannot be reached; the same call goes on once it can.
    """
    frame = frames.of(data)
    messages = _messages(frame, template, system, progress)
    structure = None if schema is None else Structure(schema)
    _check(structure, response_format, details, parameters.get("n"))
    response_format = response_format if structure is None else structure.response_format
    parameters |= {"temperature": temperature, "max_tokens": max_tokens, "response_format": response_format}
    body = asking.parameters(model, **parameters)
    how = asking.CallOptions(window=window, again=again, progress=progress, server=server, name=name)
    results = _results(cascade, agree, confidence, plain=response_format is None and not finish_reason)

    def make(values: asking.Values) -> Mapping[str, Any]:
        return {**body, "messages": [{"role": role, "content": text.fill(values)} for role, text in messages]}

    rows = asking.rows(frame, [column for _, text in messages for column in text.needed(frame.columns)])
    results.ask(model, rows, make, how)
    columns = results.columns(structure)
    results.warn()
    beside = results.beside(details=details, finish_reason=finish_reason)
    if details or finish_reason:
        return frame.table({**columns, **beside, **(results.details() if details else {})})
    return frame.column("answer", columns["answer"]) if structure is None else frame.table(columns)


async def amap(data: Any, template: str, **options: Any) -> Any:
    """Do what `map` does in a thread, so that the event loop goes on meanwhile."""
    return await asyncio.to_thread(map, data, template, **options)


class TextResults(RowResults):
    """The texts of the answers."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[int, RowText] = {}

    def keep(self, row: int, body: Mapping[str, Any]) -> str | None:
        self._texts[row] = text = answers.text(body)
        return text.error

    def ask(self, model: str, rows: Iterable[asking.Values], make: Make, how: asking.CallOptions) -> None:
        """Ask about each row in batches. Raises as `asking.ask_rows`."""
        asking.ask_rows(model, CHAT.path, rows, make, self, how)

    def beside(self, *, details: bool, finish_reason: bool) -> dict[str, Column]:
        """Return why each answer ended if that is wanted, None where nobody knows."""
        texts = (self._texts.get(row) for row in range(len(self)))
        return {"finish_reason": Column([text and text.finish_reason for text in texts])} if finish_reason else {}

    def columns(self, structure: Structure | None) -> dict[str, Column]:
        """Return the texts of the answers, or their properties by `structure`, and note the errors of those."""
        if structure is None:
            texts = (self._texts.get(row) for row in range(len(self)))
            return {"answer": Column([text and text.text for text in texts])}
        columns = {name: Column([None] * len(self), kind) for name, kind in structure.columns.items()}
        for row, text in self._texts.items():
            properties, self.errors[row] = structure.parse(text)
            for name, column in columns.items():
                column.values[row] = properties.get(name)
        return columns


def _results(
    cascade: str | None, agree: float | None, confidence: float | None, *, plain: bool
) -> TextResults | CascadeResults:
    """Return where the answers go. Raises ConfigurationError for options that do not go with a cascade, or need one."""
    if cascade is not None and not plain:
        raise ConfigurationError("cascade: answers are texts without a form; leave form and finish_reason out")
    if cascade is not None:
        return CascadeResults(proxy=cascade, agree=agree, confidence=confidence)
    if (agree, confidence) != (None, None):
        raise ConfigurationError("agree and confidence belong to a cascade; name its small model in cascade")
    return TextResults()


def _check(structure: Structure | None, response_format: Any, details: bool, samples: Any) -> None:
    """Raise ConfigurationError for options of `map` that do not go together."""
    if structure is not None:
        if response_format is not None:
            raise ConfigurationError("schema and response_format both say what answers look like; pass one of them")
        if details and (clash := [column for column in DETAILS if column in structure.columns]):
            message = f"its property {clash[0]} has the name of a column of the details; rename it"
            raise ConfigurationError(f"schema: {message}")
    if samples not in (None, 1):
        remedy = "repeat the rows, or take recipe rollout, which samples n times"
        raise ConfigurationError(f"n={samples}: a row has one answer; {remedy}")


def _messages(frame: Frame, template: str, system: str | None, say: bool) -> list[tuple[str, Template]]:
    """Return the roles and templates of a request's messages. Raises ConfigurationError."""
    messages = [("user", asking.template(template, "template", frame.columns))]
    if system is not None:
        messages.insert(0, ("system", asking.template(system, "system", frame.columns)))
        if messages[0][1].images:
            raise ConfigurationError("system: images stand in the user's message; name them in template")
    asking.some_column([text for _, text in messages], frame.columns)
    if sum(text.has_all for _, text in messages) > 1:
        raise ConfigurationError("system: all columns stand in template already; take {*} out of one of the two")
    named = [column for _, text in messages for column in text.columns]
    return [
        (role, asking.ordered(text, asking.rows(frame, frame.columns), without=named, say=say))
        for role, text in messages
    ]
