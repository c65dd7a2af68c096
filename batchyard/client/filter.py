"""`batchyard.filter`: the rows of a table to which a model says yes."""

from typing import Any

from batchyard.client import asking, frames
from batchyard.client.api import ApiClient
from batchyard.client.classify import classify
from batchyard.client.frames import Column
from batchyard.client.map import labelled

YES, NO = "yes", "no"
SYSTEM = f"Answer the user's question with {YES} or {NO}, and with nothing else."
DEFAULT = 0.95
"""Precision and recall of a cascade unless they are set."""


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
    """Return the rows of a table to which a model says yes, in order.

    The model is asked about each row in a chat. Engines that can restrict answers to yes and no do so. Repeating the
    call resumes it, as with `map`.

    Args:
        data: a table, as for `map`.
        template: the question, with columns in braces: "Is this about billing? {text}", or "{*}" for all.
        cascade: a smaller model, or the best of several ("nano,mini"). It decides as many rows as the targets allow,
            and `model` decides the others.
        precision: minimum share of the returned rows to which `model` says yes; default 0.95.
        recall: minimum share of the rows with a yes of `model` that are returned; default 0.95.
        confidence: minimum probability that both targets are reached; default 0.95.
        scores: column with probabilities of yes, 0 to 1. They replace the smaller model's, and `cascade` is their name.
        truth: column with known answers. With a cascade, standard error has both targets measured against them.
        system: a system message to replace the default one, which asks for yes or no.
        details: return a table with a row for each row of `data` instead. Its columns are `answer`, `answered_by`,
            `confidence` (the probability of yes; in a cascade, that of the smaller model), `error` and `tokens`.
        window, again, progress, server, parameters: as for `map`, but the temperature defaults to 0.

    Returns:
        A table of the kind of `data`, without the rows that have no answer or neither a yes nor a no.

    Raises ConfigurationError, RequestError, UnavailableError: as `map`.
    """
    shares = {"precision": precision, "recall": recall, "confidence": confidence}
    targets = asking.targets(cascade, **shares, scores=scores, truth=truth)
    how: dict[str, Any] = {"window": window, "again": again, "progress": progress}
    if cascade is None:
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
        options = {"proxy": cascade, "labels": [YES, NO], "precision": DEFAULT, "recall": DEFAULT} | targets
        call = asking.CallOptions(**how, server=server, name="filter")
        data_columns = {"scores": scores, "truth": truth}
        frame, columns = labelled(data, template, system or SYSTEM, model, options, call, data_columns, parameters)
    if details:
        return frame.table(columns)
    return frame.taken([row for row, answer in enumerate(columns["answer"].values) if answer == YES])
