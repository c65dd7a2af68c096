"""`batchyard.classify`: a label for each row of a table, by a classifier or in a chat that names the labels."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import orjson

from batchyard import json_lines
from batchyard.client import answers, asking, frames
from batchyard.client.api import ApiClient
from batchyard.client.asking import RowResults, Values
from batchyard.client.frames import Column, Kind
from batchyard.client.map import LABEL_TOKENS, labelled
from batchyard.endpoints import label_probabilities, responses
from batchyard.endpoints.catalog import CHAT, CLASSIFY, SYSTEMONE
from batchyard.errors import ConfigurationError
from batchyard.tables.template import Template
from batchyard.wording import MAX_LIST, cut, quoted

SYSTEM = "Classify what the user sends. Answer with one of these labels, and with nothing else: {labels}"
QUESTION = "label"
"""The id of the question of a decision."""
By = Literal["chat", "decision"]


def classify(
    data: Any,
    template: str,
    *,
    model: str,
    labels: Sequence[str] | None = None,
    system: str | None = None,
    by: By = "chat",
    cascade: str | None = None,
    agree: float | None = None,
    confidence: float | None = None,
    truth: str | None = None,
    details: bool = False,
    window: str = "24h",
    again: bool = False,
    progress: bool = True,
    server: ApiClient | None = None,
    **parameters: Any,
) -> Any:
    """Return a label for each row of a table, in the order of the rows.

    A classifier has labels of its own. Any other model is asked in a chat that names the labels, and held to them where
    its engine can do that. The same call again resumes, as that of `map`.

    Args:
        data: a table, as `map` takes it.
        template: what is classified, with columns in braces: "{text}", or "{*}" for all.
        labels: the labels. A classifier needs none; with labels, any other is an error of its row.
        system: of a chat, in place of a message with the labels; of a decision, its question.
        by: how a model without labels is asked: by a chat, or by a decision of `/v1/systemone`.
        cascade, agree, confidence, truth: as `map` has them. An embedding model is a small model, too.
        details: return a table with columns `probability`, `probabilities`, `error` and `tokens` beside the labels.
        window, again, progress, server, parameters: as `map` has them. Chats have temperature 0 by default.

    Returns:
        A column as that of `map`, or with `details` a table with a column `label`. `probability` is that of the label,
        and `probabilities` has those of all `labels`, 1 together: of a decision, and of a chat whose engine can be held
        to the labels. A classifier tells that of its label alone. A cascade has `answered_by` and `confidence` instead.

    Raises ConfigurationError, RequestError, UnavailableError: as `map`. Or there are no labels, and no classifier.
    """
    names = None if labels is None else _checked(labels)
    how = asking.CallOptions(window=window, again=again, progress=progress, server=server, name="classify")
    targets = asking.targets(cascade, agree=agree, confidence=confidence, truth=truth)
    instruction = {"role": "system", "content": system or SYSTEM.format(labels=", ".join(names or ()))}
    if cascade is not None:
        if names is None or by == "decision":
            raise ConfigurationError("a cascade asks in chats: pass labels, and leave out by")
        options = {"proxy": cascade, "labels": names, **targets}
        plain = instruction["content"].replace("{", "{{").replace("}", "}}")
        frame, columns = labelled(data, template, plain, model, options, how, {"truth": truth}, parameters)
        columns = {"label": columns.pop("answer"), **columns}
        return frame.table(columns) if details else frame.column("label", columns["label"])
    frame = frames.of(data)
    text = asking.template(template, "template", frame.columns)
    asking.some_column([text], frame.columns)
    text = asking.ordered(text, asking.rows(frame, frame.columns), say=progress)
    server = how.connected()
    way = SYSTEMONE if by == "decision" else CHAT
    spec = asking.served(server, model, CLASSIFY.path, way.path)
    classifies = CLASSIFY.path in spec["batchyard"]["endpoints"]
    _check(model, text, names, system, by, classifies=classifies)
    endpoint = CLASSIFY.path if classifies else way.path
    results = Labels(names)
    common = {} if classifies else _asked(spec, names or [], system, by, details)
    body = asking.parameters(model, **common | parameters)

    def make(values: Values) -> Mapping[str, Any]:
        content = text.fill(values)
        if classifies:
            return {**body, "input": content}
        if by == "decision":
            return {**body, "state": content}
        return {**body, "messages": [instruction, {"role": "user", "content": content}]}

    rows = asking.rows(frame, text.needed(frame.columns))
    asking.ask(server, spec, endpoint, asking.requests(endpoint, rows, make, results), results, how)
    columns = {name: results.column(name) for name in COLUMNS}
    results.warn()
    return frame.table({**columns, **results.details()}) if details else frame.column("label", columns["label"])


def _asked(spec: Mapping[str, Any], names: Sequence[str], system: str | None, by: By, details: bool) -> dict[str, Any]:
    """Return what all requests of a decision or a chat have in common."""
    if by == "decision":
        question = {"type": "choice", "criteria": dict.fromkeys(names), "instructions": system or None}
        return {"questions": {QUESTION: {key: value for key, value in question.items() if value is not None}}}
    form = _form(spec["batchyard"]["answer_forms"], names)
    tells = label_probabilities.REQUEST if details and form and spec["batchyard"]["logprobs"] else {}
    return {"temperature": 0, "max_tokens": LABEL_TOKENS, **form, **tells}


def _check(
    model: str, text: Template, names: Sequence[str] | None, system: str | None, by: By, *, classifies: bool
) -> None:
    """Raise ConfigurationError for options that a model or a way to ask does not take."""
    if classifies and (system is not None or text.images):
        raise ConfigurationError(f"model {model} is a classifier: it takes a text, and neither system nor images")
    if not classifies and names is None:
        raise ConfigurationError(f"model {model} is no classifier, so it has no labels of its own; pass labels")
    if by == "decision" and text.images:
        raise ConfigurationError("a decision is about a text here; leave the images out, or ask by chat")


COLUMNS: Mapping[str, Kind | None] = {"label": "string", "probability": "number", "probabilities": None}
"""The columns of `Labels` and their kinds."""


class Labels(RowResults):
    """The labels of rows. `names`: those that there may be; None: any."""

    def __init__(self, names: Sequence[str] | None) -> None:
        super().__init__()
        self._names = None if names is None else {name.casefold(): name for name in names}

    def keep(self, row: int, body: Mapping[str, Any]) -> str | None:
        labels, probability, of_all = responses.labels(body), None, None
        if labels and (of_all := _decided(body)):
            label = labels[0]
        elif labels:
            label, probability = labels[0], max(next(iter(responses.probabilities(body)), []), default=None)
        else:
            text = answers.text(body)
            if text.text is None:
                return text.error
            label = _label(text.text)
            of_all = label_probabilities.of_chat(body, [*(self._names or {}).values()])
        if self._names is not None:
            known = self._names.get(label.casefold())
            if known is None:
                return f"the answer {quoted(cut(label, MAX_LIST))} is none of the labels"
            label = known
        self.values[row] = label, probability if of_all is None else of_all.get(label), of_all
        return None

    def column(self, name: str) -> Column:
        place = list(COLUMNS).index(name)
        return Column([kept and kept[place] for kept in self.values], COLUMNS[name])


def _decided(body: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the probabilities of a decision's options; None if the body has no decision."""
    answer = responses.mapping(responses.mapping(body.get("answers")).get(QUESTION))
    options = answer.get("probabilities")
    if not isinstance(options, Mapping) or not all(isinstance(value, int | float) for value in options.values()):
        return None
    return {str(name): float(value) for name, value in options.items()}


def _checked(labels: Sequence[str]) -> list[str]:
    names = [] if isinstance(labels, str) else [*labels]
    if not all(isinstance(name, str) and name.strip() == name != "" for name in names):
        raise ConfigurationError("labels: each should be a text, without spaces around it")
    if len({name.casefold() for name in names}) != len(names) or len(names) < 2:
        raise ConfigurationError(f"labels: pass two or more different ones, such as {['positive', 'negative']}")
    return names


def _form(forms: Collection[str], labels: Sequence[str]) -> Mapping[str, Any]:
    """Return the parameters with which an engine answers with one of the labels; none if it cannot be held to them."""
    if "choice" in forms:
        return {"structured_outputs": {"choice": list(labels)}}
    if "json" not in forms:
        return {}
    properties = {"label": {"type": "string", "enum": list(labels)}}
    schema = {"type": "object", "properties": properties, "required": ["label"], "additionalProperties": False}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def _label(text: str) -> str:
    """Return the label of a text: the text, or what stands in an object with one value."""
    try:
        value = json_lines.loads(text)
    except orjson.JSONDecodeError:
        return text.strip().strip(".\"'")
    values = list(value.values()) if isinstance(value, dict) else [value]
    return values[0] if len(values) == 1 and isinstance(values[0], str) else text.strip()
