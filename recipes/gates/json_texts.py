"""Gates over JSON in the text: is-json, contains-json. Both may have a JSON schema as their value."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

import orjson
from jsonschema import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry

from batchyard import json_lines
from batchyard.comparing.patterns import compiled
from batchyard.recipes import Failure, Item, gate

_DECODER = json.JSONDecoder()


def _pattern(validator: Validator, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Keyword `pattern`, in linear time."""
    if validator.is_type(instance, "string") and compiled(pattern).search(instance) is None:
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def schema_of(value: Any) -> Validator | None:
    """Return the validator of a JSON schema or its text. Raises ValueError if it cannot be used."""
    return None if value is None else _validator(value if isinstance(value, str) else json.dumps(value))


@lru_cache(maxsize=128)
def _validator(schema_json: str) -> Validator:
    try:
        schema: Any = json_lines.loads(schema_json)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"needs a JSON schema: {error}") from error
    if not isinstance(schema, dict):
        raise ValueError("needs a JSON schema, which is an object")
    _refuse(schema)
    kind = validator_for(schema)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"needs a JSON schema: {error.message} at {error.json_path}") from error
    linear: Any = extend(kind, {"pattern": _pattern})  # type: ignore[no-untyped-call]
    return cast(Validator, linear(schema, registry=Registry()))


def _refuse(schema: Any) -> None:
    """Raise ValueError for patternProperties, patterns that are none, and references to other documents."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key == "patternProperties":
                raise ValueError("takes no schema with patternProperties")
            if key == "pattern" and isinstance(value, str):
                compiled(value)
            if key in ("$ref", "$dynamicRef") and isinstance(value, str) and not value.startswith("#"):
                raise ValueError(f"takes no reference to another document: {value!r}")
            _refuse(value)
    elif isinstance(schema, list):
        for value in schema:
            _refuse(value)


def _violation(validator: Validator | None, value: Any) -> str | None:
    """Return what of the schema a value breaks, None if nothing."""
    error = None if validator is None else next(validator.iter_errors(value), None)
    return None if error is None else f"{error.message} at {error.json_path}"


def violation(schema: Mapping[str, Any], value: Any) -> str | None:
    """Return what of a JSON schema a value breaks, None if nothing. Raises ValueError as `schema_of` does."""
    return _violation(schema_of(dict(schema)), value)


@gate("is-json", schema_of)
def is_json(text: str, item: Item, value: Any) -> Failure | None:
    """Pass a text that is JSON as a whole, and follows the schema."""
    try:
        content = json_lines.loads(text)
    except orjson.JSONDecodeError as error:
        return Failure("is-json", f"The answer is not JSON: {error}.")
    violation = _violation(schema_of(value), content)
    return None if violation is None else Failure("is-json", f"The JSON does not follow the schema: {violation}.")


@gate("contains-json", schema_of)
def contains_json(text: str, item: Item, value: Any) -> Failure | None:
    """Pass a text with a JSON object or list somewhere that follows the schema."""
    validator, violation = schema_of(value), None
    for content in _contents(text):
        violation = _violation(validator, content)
        if violation is None:
            return None
    if violation is None:
        return Failure("contains-json", "The answer contains no JSON object or list.")
    return Failure("contains-json", f"The JSON in the answer does not follow the schema: {violation}.")


def _contents(text: str) -> Iterator[Any]:
    """Yield the JSON objects and lists in a text, those within others left out."""
    position = 0
    while position < len(text):
        if text[position] in "{[":
            try:
                content, position = _DECODER.raw_decode(text, position)
            except (ValueError, RecursionError):
                position += 1
            else:
                yield content
        else:
            position += 1


GATES = (is_json, contains_json)
