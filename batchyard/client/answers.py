"""Answers of a batch: output lines as text, error and tokens; texts by a schema as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jsonschema
import orjson
from pydantic import BaseModel, ValidationError

from batchyard import output_lines, responses
from batchyard.client.frames import Kind
from batchyard.errors import ConfigurationError
from batchyard.schema_words import invalid_values
from batchyard.wording import MAX_NAME, cut

MAX_REASON = 200
_KINDS: tuple[Kind, ...] = ("string", "integer", "number", "boolean")


class RowAnswer(NamedTuple):
    """What became of one request.

    `truncated`: the text ends because it had `max_tokens`. `passing`: another batch may answer it.
    """

    custom_id: str
    text: str | None
    error: str | None
    tokens: int | None
    truncated: bool = False
    passing: bool = False


def read(line: bytes) -> RowAnswer:
    """Parse a line of an output or error file of chat completions."""
    answer = orjson.loads(line)
    response = answer["response"] or {}
    body = response.get("body")
    tokens = responses.usage(body).total_tokens
    if response.get("status_code") != 200 or responses.fault(body) is not None:
        code, message = output_lines.reason(answer)
        reason = f"{code}: {message}" if message else code
        return RowAnswer(answer["custom_id"], None, reason, tokens, passing=output_lines.is_passing(answer))
    output = responses.output(body)
    error = None if output.no_text is None else f"{output.no_text.code}: {output.no_text.message}"
    text = output.text if error is None else None
    return RowAnswer(answer["custom_id"], text, error, tokens, output.finish_reason == "length")


class Structure:
    """A JSON schema of objects, whose properties become columns."""

    def __init__(self, schema: type[BaseModel] | Mapping[str, Any]) -> None:
        """Take a class of pydantic or a JSON schema. Raises ConfigurationError if it describes no object."""
        self._parse: Callable[[str], Mapping[str, Any]]
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            self._name, self._schema = schema.__name__, schema.model_json_schema()
            self._parse = lambda text: schema.model_validate_json(text).model_dump(mode="json", by_alias=True)
        elif isinstance(schema, Mapping):
            self._name, self._schema = "answer", dict(schema)
            validator = _validator(self._schema)

            def parse(text: str) -> Mapping[str, Any]:
                value = orjson.loads(text)
                validator.validate(value)
                return dict(value)

            self._parse = parse
        else:
            raise ConfigurationError(f"schema {schema!r}: pass a class of pydantic or a JSON schema as a dict")
        if self._schema.get("type") != "object" or not self._schema.get("properties"):
            raise ConfigurationError('schema: its type must be "object", with properties, which become columns')
        self.columns: dict[str, Kind | None] = {
            name: self._kind(property) for name, property in self._schema["properties"].items()
        }

    @property
    def response_format(self) -> dict[str, Any]:
        """The request's parameter that makes an engine answer in this form."""
        return {"type": "json_schema", "json_schema": {"name": self._name, "schema": self._schema}}

    def parse(self, answer: RowAnswer) -> tuple[Mapping[str, Any], str | None]:
        """Return the properties of an answer, or none and why it does not have this form."""
        if answer.text is None:
            return {}, answer.error
        try:
            return self._parse(answer.text), None
        except ValidationError as error:
            reason = str(invalid_values(error, answer.text)[0])
        except jsonschema.ValidationError as error:
            reason = f"{error.json_path}: {error.message}"
        except orjson.JSONDecodeError as error:
            reason = f"not JSON: {error}"
        if answer.truncated:
            return {}, "the answer ends at max_tokens before its JSON does; raise max_tokens"
        return {}, cut(f"the answer does not fit the schema: {reason}", MAX_REASON + MAX_NAME)

    def _kind(self, schema: Any) -> Kind | None:
        """Return the type of a property's values; None if it has several, or one with parts."""
        if not isinstance(schema, Mapping):
            return None
        reference = schema.get("$ref", "")
        if reference.startswith("#/$defs/"):
            return self._kind(self._schema.get("$defs", {}).get(reference.removeprefix("#/$defs/")))
        if "anyOf" in schema:
            kinds = {self._kind(part) for part in schema["anyOf"] if part != {"type": "null"}}
            return kinds.pop() if len(kinds) == 1 else None
        types = schema.get("type", [])
        names = [name for name in ([types] if isinstance(types, str) else types) if name != "null"]
        return next((kind for kind in _KINDS if names == [kind]), None)


def _validator(schema: dict[str, Any]) -> Any:
    validator = jsonschema.validators.validator_for(schema)
    try:
        validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ConfigurationError(f"schema: no JSON schema: {error.json_path}: {error.message}") from error
    return validator(schema)
