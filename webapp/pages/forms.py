"""Parts common to several pages: list parameters, batch options, idempotency, and the field of an error."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import flask
from pydantic import BeforeValidator

from batchyard.endpoints.catalog import ENDPOINTS
from batchyard.errors import RequestError
from batchyard.models import served_by_name
from batchyard.statuses import priority_name
from store import batches
from store.records import Batch
from tasks.steps import registry, verify
from webapp.idempotency import Idempotency
from webapp.requests import current_context
from webapp.wire.lists import ListQuery

# The form field of an error's parameter, where the names differ.
_FIELDS = {"url": "endpoint", "prompts": "text", "prompt": "text", "messages": "text"}
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
Blank = BeforeValidator(lambda value: None if value == "" else value)
"""Turns an empty field of a form into None."""
PLAN_ROWS = 100


PageParams = ListQuery


@dataclass(frozen=True)
class Problem:
    """The error of a rejected form; `field` is None if no single field is wrong."""

    message: str
    field: str | None

    @classmethod
    def of(cls, error: RequestError, fields: Mapping[str, str] = MappingProxyType(_FIELDS)) -> Problem:
        """Return a refusal. `fields`: the form's field of a parameter, where the names differ."""
        name = (error.param or "").removeprefix("body.").removeprefix("batch.").removeprefix("input.").split(".")[0]
        return cls(error.message, fields.get(name, name) or None)


@dataclass(frozen=True)
class StepForm:
    """A post-processing step in a form, with the JSON Schema of each option by name."""

    name: str
    what: str
    options: dict[str, dict[str, Any]]


def post_processing() -> list[StepForm]:
    steps = []
    for step in sorted(registry.STEPS.load(), key=lambda step: step.name):
        if step.name == verify.NAME:  # the page of a batch has a button for it
            continue
        options = dict(step.options.model_json_schema()["properties"])
        options.pop("step", None)
        steps.append(StepForm(step.name, step.summary, options))
    return steps


def batch_options(fields: Mapping[str, str]) -> dict[str, Any]:
    steps = []
    for step in post_processing():
        if f"step.{step.name}" in fields:
            values = {option: fields.get(f"step.{step.name}.{option}") for option in step.options}
            steps.append({"step": step.name} | {option: value for option, value in values.items() if value})
    return {
        "completion_window": fields.get("completion_window", "").strip() or "24h",
        "metadata": metadata(fields.get("metadata", "")),
        "post_process": steps,
        "on_invalid": fields.get("on_invalid", "fail"),
        "priority": fields.get("priority", "normal"),
    }


def text(fields: Mapping[str, str], name: str) -> str:
    """Return a field with the line breaks that were typed: browsers send those of a text area as CR LF."""
    return fields.get(name, "").replace("\r\n", "\n")


def filled(fields: Mapping[str, str], *names: str) -> dict[str, str]:
    """Return these of the fields, as they were typed, without those that are blank."""
    return {name: value for name in names if (value := text(fields, name)).strip()}


def fields_of(batch: Batch) -> dict[str, str]:
    metadata = {name: value for name, value in (batch.request_metadata or {}).items() if name != batches.NAME}
    options = {name: getattr(batch, name) for name in ("completion_window", "on_invalid", "post_process")}
    return option_fields({**options, "metadata": metadata, "priority": priority_name(batch.priority)})


def option_fields(options: Mapping[str, Any]) -> dict[str, str]:
    lines = [f"{_quoted(name, '=')}={_quoted(value)}" for name, value in (options.get("metadata") or {}).items()]
    fields = {
        "completion_window": options["completion_window"],
        "metadata": "\n".join(lines),
        "priority": options.get("priority", "normal"),
    }
    if options.get("on_invalid") == "skip":
        fields["on_invalid"] = "skip"
    for entry in options.get("post_process", ()):
        prefix = f"step.{entry['step']}"
        fields[prefix] = "1"
        for name, value in registry.request(entry).items():
            if name != "step" and value is not None:
                fields[f"{prefix}.{name}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return fields


def metadata(text: str) -> dict[str, str] | None:
    """Parse lines of `name=value`, each as it is or as a JSON text.

    Raises RequestError: a line is none, or has a name twice.
    """
    metadata: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, io.StringIO(text, newline=None)), 1):
        if not line:
            continue
        quoted = _QUOTED.match(line)
        start = quoted.end() if quoted else 0
        rest, equals, value = line[start:].partition("=")
        name, value = _unquoted((line[:start] + rest).strip()), _unquoted(value.strip())
        if not equals or not name or name in metadata:
            fault = "a name twice" if name in metadata else "no name=value"
            message = f"Line {number} of the metadata has {fault}."
            raise RequestError(message, code="invalid_value", param="metadata")
        metadata[name] = value
    return metadata or None


def _quoted(text: str, separator: str | None = None) -> str:
    """Return a name or a value as the metadata's field has it: a JSON text if it would not be read as it is."""
    plain = text == text.strip() and not text.startswith('"') and not {"\n", "\r", separator}.intersection(text)
    return text if plain else json.dumps(text, ensure_ascii=False)


def _unquoted(text: str) -> str:
    try:
        value = json.loads(text) if text.startswith('"') else text
    except ValueError:  # it begins with a quoted word
        return text
    return str(value)


def idempotency(action: str, content: str) -> Idempotency:
    """Return the idempotency key of a form: sent twice unchanged, it creates one batch. None without a field `once`.

    `content` is a hash or an id of what the form submits.
    """
    key = flask.request.form.get("once")
    return (f"page-{action}-{key[:64]}-{content}", content) if key else None


def template_context() -> dict[str, Any]:
    """Return the variables of templates that have a batch's options: the tasks by endpoint, and the models by name."""
    models = served_by_name(current_context().models)
    served = {path for spec in models.values() for path in spec.endpoints}
    tasks = {
        path: re.sub("[/_]", " ", path.removeprefix("/v1/")).strip().capitalize()
        for path in ENDPOINTS
        if path in served
    }
    return {"models": models, "tasks": tasks, "steps": post_processing()}
