"""`batchyard.filter`: the rows of a table to which a model says yes."""

from __future__ import annotations

from typing import Any

from batchyard.client import asking, frames
from batchyard.client.api import ApiClient
from batchyard.client.classify import MAX_TOKENS, classify
from batchyard.client.frames import Column
from batchyard.client.map import CascadeResults, ask
from batchyard.endpoints.catalog import CHAT
from batchyard.errors import ConfigurationError

YES, NO = "yes", "no"
SYSTEM = f"Answer the user's question with {YES} or {NO}, and with nothing else."
LEAST = 0.95
"""The targets of a cascade that are not set."""


def filter(
    data: Any,
    template: str,
    *,
    model: str,
    cascade: str | None = None,
    precision: float | None = None,
    recall: float | None = None,
    confidence: float | None = None,
    scores: str | None = None,
    truth: str | None = None,
    system: str | None = None,
    details: bool = False,
    window: str = "24h",
    again: bool = False,
    progress: bool = True,
    server: ApiClient | None = None,
    **parameters: Any,
) -> Any:
    """Return the rows of a table to which a model says yes, in their order.

    Each row is a chat that ends with yes or no; the engine is held to these words where it can be. The same call again
    resumes, as that of `map`.

    Args:
        data: a table, as `map` takes it.
        template: the question, with columns in braces: "Is this about billing? {text}", or "{*}" for all.
        cascade: a smaller model, which decides the rows of which it is sure enough for these targets.
        precision: least share of the returned rows to which `model` says yes; 0.95 by default.
        recall: least share of the rows to which `model` says yes that are returned; 0.95 by default.
        confidence: least probability that both are reached; 0.95 by default.
        scores: column with probabilities of yes, 0 to 1. They replace the smaller model's, and `cascade` is their name.
        truth: column with known answers. With a cascade, standard error has both targets measured against them.
        system: in place of a message that asks for yes or no.
        details: return a table for all rows in place of some rows: columns `answer`, `answered_by`, `confidence` (the
            probability of yes; a cascade has that of the smaller model), `error` and `tokens`.
        window, again, progress, server, parameters: as `map` has them. Chats have temperature 0 by default.

    Returns:
        A table of the kind of `data`. Rows without an answer, or with another one than yes or no, are left out.

    Raises ConfigurationError, RequestError, UnavailableError: as `map`.
    """
    targets = {"precision": precision, "recall": recall, "confidence": confidence}
    given = {name: value for name, value in targets.items() if value is not None}
    for name, value in given.items():
        if cascade is None:
            raise ConfigurationError(f"{name} is that of a cascade; name its small model in cascade")
        if not 0 < value < 1:
            raise ConfigurationError(f"{name}={value}: pass a share between 0 and 1, such as {LEAST}")
    how: dict[str, Any] = {"window": window, "again": again, "progress": progress}
    if cascade is None:
        if scores or truth:
            raise ConfigurationError("scores and truth need a cascade; name its small model in cascade")
        how |= {"server": server, "system": system or SYSTEM, "details": True}
        table = frames.of(classify(data, template, model=model, labels=[YES, NO], **how, **parameters))
        answers, tells = table.cells("label"), table.cells("probabilities")
        columns = {
            "answer": Column([*answers]),
            "answered_by": Column([answer and model for answer in answers]),
            "confidence": Column([each and each[YES] for each in tells], "number"),
            "error": Column([*table.cells("error")]),
            "tokens": Column([*table.cells("tokens")], "integer"),
        }
        frame = frames.of(data)
    else:
        server = asking.CallOptions(server=server).connected()
        names = (model, cascade) if scores is None else (model,)
        specs = [asking.served(server, name, CHAT.path)["batchyard"] for name in names]
        options = {"proxy": cascade, "labels": [YES, NO], "precision": LEAST, "recall": LEAST} | given
        options |= {"structured": all("choice" in spec["answer_forms"] for spec in specs)}
        results = CascadeResults(options, data, scores=scores, truth=truth)
        body = asking.parameters(model, **{"temperature": 0, "max_tokens": MAX_TOKENS, **parameters})
        call = asking.CallOptions(**how, server=server, name="filter")
        frame = ask(results, data, template, system or SYSTEM, body, call)
        columns = {**results.columns(None), **results.details()}
        results.warn()
    if details:
        return frame.table(columns)
    return frame.taken([row for row, answer in enumerate(columns["answer"].values) if answer == YES])
