"""Answers of a batch: output lines as text, error and tokens; texts by a schema as columns."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jsonschema
import orjson
from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from batchyard import json_lines
from batchyard.client.frames import Kind
from batchyard.endpoints import output_lines, responses
from batchyard.errors import ConfigurationError
from batchyard.schema_words import invalid_values
from batchyard.wording import MAX_NAME, cut, quoted

MAX_REASON = 200
_NO_SCHEMAS = ("const", "default", "enum", "examples")
"""Keywords below which stand values, no schemas."""
_KINDS: tuple[Kind, ...] = ("string", "integer", "number", "boolean")


class RowAnswer(NamedTuple):
    """What became of one request."""

    custom_id: str
    body: Mapping[str, Any] | None  # of the response; None if there is none, for the reason `error`
    error: str | None
    tokens: int | None
    passing: bool = False  # another batch may answer it


class RowText(NamedTuple):
    """The text of an answer, or why it has none; and why it ended, if the response says so."""

    text: str | None
    error: str | None = None
    finish_reason: str | None = None
    is_cut_off: bool = False


def outcome(line: bytes) -> RowAnswer:
    """Parse a line of an output or error file."""
    answer = json_lines.loads(line)
    response = answer["response"] or {}
    body = response.get("body")
    tokens = responses.usage(body).total_tokens
    if response.get("status_code") != 200 or responses.fault(body) is not None:
        code, message = output_lines.reason(answer)
        reason = f"{code}: {message}" if message else code
        return RowAnswer(answer["custom_id"], None, reason, tokens, passing=output_lines.is_passing(answer))
    return RowAnswer(answer["custom_id"], body, None, tokens)


def text(body: Mapping[str, Any]) -> RowText:
    output = responses.output(body)
    ending = (output.finish_reason, output.is_cut_off)
    if output.no_text is not None:
        return RowText(None, f"{output.no_text.code}: {output.no_text.message}", *ending)
    return RowText(output.text, None, *ending)


class Structure:
    """A JSON schema of objects, whose properties become columns."""

    def __init__(self, schema: type[BaseModel] | Mapping[str, Any]) -> None:
        """Take a class of pydantic or a JSON schema. Raises ConfigurationError if it describes no object."""
        self._parse: Callable[[str], Mapping[str, Any]]
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            self._name = schema.__name__
            try:
                input_schema, output_schema = (
                    _root(document)
                    for document in (schema.model_json_schema(), schema.model_json_schema(mode="serialization"))
                )
            except PydanticUserError as error:
                raise ConfigurationError(f"schema {schema.__name__} has no JSON schema: {error.message}") from error
            for name, field in schema.model_fields.items():
                alias = field.validation_alias
                choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
                if alias is not None and not any(isinstance(choice, str) for choice in choices):
                    reason = f"its field {name} is read by a path; give it a text as validation_alias"
                    raise ConfigurationError(f"schema: {reason}")  # no schema says where its value stands
            self._parse = lambda text: schema.model_validate_json(text).model_dump(mode="json", by_alias=True)
        elif isinstance(schema, Mapping):
            self._name = "answer"
            of_document = jsonschema.validators.validator_for(schema)
            try:
                of_document.check_schema(dict(schema))
            except jsonschema.SchemaError as error:
                raise ConfigurationError(f"schema: no JSON schema: {error.json_path}: {error.message}") from error
            validator = of_document(schema)
            input_schema = output_schema = _root(dict(schema))

            def parse(text: str) -> Mapping[str, Any]:
                value = json_lines.loads(text)
                validator.validate(value)
                return dict(value)

            self._parse = parse
        else:
            raise ConfigurationError(f"schema {schema!r}: pass a class of pydantic or a JSON schema as a dict")
        for document in (input_schema, output_schema):
            if document.get("type") != "object" or not document.get("properties"):
                raise ConfigurationError('schema: its type must be "object", with properties, which become columns')
        self._schema = input_schema
        # The type of each property; those of a class of pydantic have the names that it writes
        self.columns: dict[str, Kind | None] = {
            name: _kind(output_schema, property) for name, property in output_schema["properties"].items()
        }

    @property
    def response_format(self) -> dict[str, Any]:
        """The request's parameter that makes an engine answer in this form."""
        return {"type": "json_schema", "json_schema": {"name": self._name, "schema": self._schema}}

    def parse(self, answer: RowText) -> tuple[Mapping[str, Any], str | None]:
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
        except PydanticSerializationError as error:
            reason = str(error)
        except RecursionError:
            reason = "nested too deep"
        if answer.is_cut_off:
            return {}, "the answer ends at max_tokens before its JSON does; raise max_tokens"
        return {}, cut(f"the answer does not fit the schema: {reason}", MAX_REASON + MAX_NAME)


def _root(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose root is no reference, as that of a recursive class is. Raises ConfigurationError."""
    _check_references(schema, schema, "$")
    seen = set[str]()
    while (reference := schema.get("$ref")) is not None and reference not in seen:
        seen.add(reference)
        siblings = {name: value for name, value in schema.items() if name != "$ref"}
        schema = {**_lookup(schema, reference), **siblings}
    return schema


def _check_references(document: Mapping[str, Any], schema: Any, place: str) -> None:
    children = schema.items() if isinstance(schema, Mapping) else enumerate(schema) if isinstance(schema, list) else ()
    for name, child in children:
        if name == "$ref" and isinstance(child, str):
            try:
                _lookup(document, child)
            except Unresolvable:
                message = f"schema: {place}: $ref {quoted(child)} leads nowhere; put what it names into $defs"
                raise ConfigurationError(message) from None
        elif name not in _NO_SCHEMAS:
            _check_references(document, child, f"{place}.{name}")


def _lookup(document: Mapping[str, Any], reference: str) -> Any:
    specification = specification_with(document.get("$schema", ""), default=DRAFT202012)
    resource = specification.create_resource(document)
    return Registry().with_resource("", resource).resolver().lookup(reference).contents


def _kind(document: Mapping[str, Any], schema: Any, seen: frozenset[str] = frozenset()) -> Kind | None:
    """Return the type of a property's values; None if it has several, or one with parts."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(reference := schema.get("$ref"), str):
        return None if reference in seen else _kind(document, _lookup(document, reference), seen | {reference})
    if "anyOf" in schema:
        kinds = {_kind(document, part, seen) for part in schema["anyOf"] if part != {"type": "null"}}
        return kinds.pop() if len(kinds) == 1 else None
    types = schema.get("type", [])
    names = [name for name in ([types] if isinstance(types, str) else types) if name != "null"]
    return next((kind for kind in _KINDS if names == [kind]), None)
