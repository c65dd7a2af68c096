"""Checks a request body against its endpoint's model."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from batchyard.endpoints.base import Endpoint
from batchyard.endpoints.bodies.chat import ReadMessage
from batchyard.endpoints.bodies.common import Streaming
from batchyard.endpoints.catalog import ENDPOINTS
from batchyard.schema_words import InvalidValue, invalid_values
from batchyard.wording import hint, quoted

READ = ("model", "temperature", "seed", "stream", "metadata")
"""Parameters that Batchyard itself reads in any body, beside prompts and limits."""
BOUNDED = "repetition_detection"
"""The parameter by which a request slows all others of its server, whoever runs that."""
_MESSAGES = TypeAdapter(Annotated[list[ReadMessage], Field(fail_fast=True)])
_CLOSE = 0.85
"""How alike a name and a known one are if the first is most likely misspelt, from 0 to 1."""


def misspelt(endpoint: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each parameter that the endpoint does not have, and that is much like one of its, as (param, message)."""
    known = ENDPOINTS[endpoint].body.model_fields
    for name in names:
        if name not in known and (suggestion := hint(name, known, _CLOSE)):
            message = f"{endpoint} has no parameter {quoted(name)}, so an engine may ignore it{suggestion}"
            yield f"body.{name}", message


def validation_error(endpoint: str, body: dict[str, Any], *, passed_on: bool = False) -> tuple[str, str] | None:
    """Return what the endpoint refuses first in `body`, as (param, message); None if it is valid.

    `passed_on`: a server that someone else runs decides. Only what Batchyard itself reads has to be valid.
    """
    parameters = {key: value for key, value in body.items() if value is not None}
    entry = ENDPOINTS[endpoint]
    try:
        entry.body.model_validate(parameters)
    except ValidationError as error:
        invalid = invalid_values(error, parameters)
        values = list(_read(entry, parameters, invalid) if passed_on else invalid)
        if not values:
            return None
        # A value of a union type has an error per type; the deepest one says most.
        first = max(values, key=lambda value: len(value.path))
        path = "body" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first.path)
        return path, f"{path}: {first.reason}."
    return None


def stream_error(body: dict[str, Any]) -> tuple[str, str] | None:
    """Return what is wrong with the flags of a stream in a live request's body, as (param, message)."""
    flags = {name: body[name] for name in Streaming.model_fields if body.get(name) is not None}
    try:
        Streaming.model_validate(flags)
    except ValidationError as error:
        path = "body." + ".".join(map(str, (first := invalid_values(error, flags)[0]).path))
        return path, f"{path}: {first.reason}."
    if flags.get("stream_options") and not flags.get("stream"):
        return "body.stream_options", "Stream options can only be defined when `stream` is true."
    return None


def _read(entry: Endpoint, parameters: dict[str, Any], invalid: Iterable[InvalidValue]) -> Iterator[InvalidValue]:
    """Yield what is wrong with the parts of a body that Batchyard itself reads."""
    names = {*READ, BOUNDED, *entry.content, *(key.partition(".")[0] for key in entry.output_limits)}
    for value in (value for value in invalid if value.path):
        within = value.path[0] in ("messages", "metadata") and len(value.path) > 1  # a server may take other members,
        is_high = value.kind == "less_than_equal" and BOUNDED not in value.path  # and more than OpenAI's does
        if value.path[0] in names and not within and not is_high:
            yield value
    messages = parameters.get("messages")
    if isinstance(messages, list):
        try:
            _MESSAGES.validate_python(messages)
        except ValidationError as error:
            for value in invalid_values(error, messages):
                yield value._replace(path=("messages", *value.path))
