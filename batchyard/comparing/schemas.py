"""Clients' JSON schemas: what a value breaks, in a time that can be limited."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, cast

import orjson
from jsonschema import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry

from batchyard import json_lines
from batchyard.comparing.patterns import compiled

deadline: ContextVar[float] = ContextVar("deadline", default=float("inf"))
"""The `time.thread_time()` from which a check raises TimeoutError: references of a schema can multiply its work."""


def _limited(keyword: Callable[..., Any]) -> Callable[..., Any]:
    """Return the check of a keyword, which ends at the deadline."""

    def check(validator: Validator, value: Any, instance: Any, schema: Any) -> Any:
        if time.thread_time() >= deadline.get():
            raise TimeoutError("the JSON schema takes too long")
        return keyword(validator, value, instance, schema)

    return check


def _pattern(validator: Validator, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Keyword `pattern`, in linear time."""
    if validator.is_type(instance, "string") and compiled(pattern).search(instance) is None:
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _unique(validator: Validator, unique: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Keyword `uniqueItems`, in linear time."""
    if unique and validator.is_type(instance, "array"):
        seen = {json_lines.dumps(item, option=orjson.OPT_SORT_KEYS) for item in instance}
        if len(seen) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


_LINEAR: Mapping[str, Callable[..., Any]] = {"pattern": _pattern, "uniqueItems": _unique}


def schema_of(value: Any) -> Validator | None:
    """Return the validator of a JSON schema, as object or text; None for None."""
    return None if value is None else _validator(value if isinstance(value, str) else json.dumps(value))


@lru_cache(maxsize=128)
def _validator(schema_json: str) -> Validator:
    try:
        schema: Any = json_lines.loads(schema_json)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"needs a JSON schema: {error}") from error
    if not isinstance(schema, dict) or not isinstance(schema.get("$schema", ""), str):
        raise ValueError("needs a JSON schema, which is an object")
    _refuse({name: value for name, value in schema.items() if name != "$schema"})
    kind = validator_for(schema)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"needs a JSON schema: {error.message} at {error.json_path}") from error
    keywords = {name: _limited(check) for name, check in {**kind.VALIDATORS, **_LINEAR}.items()}
    limited: Any = extend(kind, keywords)  # type: ignore[no-untyped-call]
    return cast(Validator, limited(schema, registry=Registry()))


_UNBOUNDED = ("patternProperties", "unevaluatedItems", "unevaluatedProperties")
"""jsonschema follows references for the last two between its checks, where no deadline holds."""


def _refuse(schema: Any) -> None:
    """Raise ValueError for keywords that cannot be bounded, wrong patterns, and references to other documents."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key in _UNBOUNDED:
                raise ValueError(f"takes no schema with {key}")
            if key == "$schema" and isinstance(value, str):  # jsonschema would go on with its own keywords
                raise ValueError("takes $schema at the root only")
            if key == "pattern" and isinstance(value, str):
                compiled(value)
            if key in ("$ref", "$dynamicRef") and isinstance(value, str) and not value.startswith("#"):
                raise ValueError(f"takes no reference to another document: {value!r}")
            _refuse(value)
    elif isinstance(schema, list):
        for value in schema:
            _refuse(value)


def first_violation(validator: Validator | None, value: Any) -> str | None:
    """Return what of the schema a value breaks, None if nothing."""
    error = None if validator is None else next(validator.iter_errors(value), None)
    return None if error is None else f"{error.message} at {error.json_path}"


def violation(schema: Mapping[str, Any], value: Any) -> str | None:
    """Return what of a JSON schema a value breaks, None if nothing. Raises ValueError as `schema_of` does."""
    return first_violation(schema_of(dict(schema)), value)
