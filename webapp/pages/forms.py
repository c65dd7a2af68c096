"""Forms: what several pages have in common: which page of a list, a batch's options, and where an error belongs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from batchyard.errors import RequestError
from batchyard.models import ENDPOINTS
from tasks.steps import registry
from webapp.requests import current_context

_FIELDS = {
    "model": "run",
    "url": "run",
    "prompts": "text",
    "prompt": "text",
    "messages": "text",
}


class Older(BaseModel):
    """Which page of a list is asked for."""

    after: str | None = Field(None, description="the id of the last one of the page before")
    limit: int = Field(20, ge=1, le=100)


@dataclass(frozen=True)
class Problem:
    """Why a form was refused, and the field that it is about, if it is about one."""

    message: str
    field: str | None

    @classmethod
    def of(cls, error: RequestError) -> Problem:
        name = (error.param or "").removeprefix("body.").removeprefix("batch.").removeprefix("input.").split(".")[0]
        return cls(error.message, _FIELDS.get(name, name) or None)


@dataclass(frozen=True)
class Step:
    """A post-processing step as a form offers it; `options` are JSON Schemas by name."""

    name: str
    what: str
    options: dict[str, dict[str, Any]]


def post_processing() -> list[Step]:
    """The steps there are."""
    found = []
    for name, (options, function) in sorted(registry.REGISTRY.items()):
        schemas = options.model_json_schema()["properties"]
        said = (sys.modules[function.__module__].__doc__ or "").partition("\n")[0].replace("`", "")
        what = said.removeprefix(f"Step {name}: ")
        found.append(Step(name, what, {option: schemas[option] for option in schemas if option != "step"}))
    return found


def batch_options(typed: Mapping[str, str]) -> dict[str, Any]:
    """`completion_window`, `metadata` and `post_process` as an API client would write them. Raises RequestError."""
    return {
        "completion_window": typed.get("completion_window", "").strip() or "24h",
        "metadata": _metadata(typed.get("metadata", "")),
        "post_process": [_step(step, typed) for step in post_processing() if f"step.{step.name}" in typed],
    }


def _step(step: Step, typed: Mapping[str, str]) -> dict[str, str]:
    given = {option: typed.get(f"step.{step.name}.{option}") for option in step.options}
    return {"step": step.name} | {option: value for option, value in given.items() if value}


def _metadata(text: str) -> dict[str, str] | None:
    """The pairs of `name=value` lines. Raises RequestError."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not line.strip():
            continue
        if not equals or not name or name in found:
            raise RequestError(
                f"Line {number} of the metadata has {'a name twice' if name in found else 'no name=value'}.",
                code="invalid_value",
                param="metadata",
            )
        found[name] = value
    return found or None


def _served() -> dict[str, Sequence[str]]:
    """The models that serve each endpoint."""
    models = current_context().models.values()
    found = {endpoint: [spec.name for spec in models if endpoint in spec.endpoints] for endpoint in ENDPOINTS}
    return {endpoint: names for endpoint, names in found.items() if names}


def template_context() -> dict[str, Any]:
    """What templates with a batch's options need."""
    endpoints = _served()
    return {"served": endpoints, "endpoints": {name: name for name in endpoints}, "steps": post_processing()}
