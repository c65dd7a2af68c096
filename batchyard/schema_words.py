"""JSON schemas in words: which schema a value has, what it takes, and why a value is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, get_args

from batchyard.wording import MAX_NAME, cut, nearest

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

Document: TypeAlias = Mapping[str, Any]
Path: TypeAlias = tuple[str | int, ...]

_TYPES = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "null": "null",
}
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
}
_ANYTHING = "a value"
_PATTERN = "that matches"
WORDED = (
    *("type", "anyOf", "oneOf", "enum", "const", "pattern"),
    *("minLength", "maxLength", "minItems", "maxItems", *_BOUNDS),
)
"""Keywords of a schema that `wanted` puts into words."""
_MISSING = "Field required"
_QUOTED = re.compile(r"'([^']*)'")
_KEY = "[key]"
"""Step of pydantic's paths to a key instead of its value."""
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "a text",
    **dict.fromkeys(("list", "tuple"), "a list"),
    **dict.fromkeys(("dict", "mapping", "model", "dataclass"), "an object"),
    "none": "null",
    "json": "JSON",
    "datetime": "a date and time",
    "date": "a date",
    "url": "a URL",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "string_too_short": "a text of at least {min_length} characters",
    "string_too_long": "a text of at most {max_length} characters",
    "string_pattern_mismatch": f"a text {_PATTERN} {{pattern}}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    **dict.fromkeys(("literal_error", "enum"), "one of {expected}"),
    "union_tag_invalid": "one of {expected_tags}",
}
"""What pydantic wanted, by the type of its error or the beginning of that."""


def alternatives(document: Document, schema: Document) -> Iterator[Document]:
    """Yield a schema without references, or each of those that it offers."""
    if "$ref" in schema:
        yield from alternatives(document, document.get("$defs", {})[schema["$ref"].rpartition("/")[2]])
    elif choices := schema.get("anyOf") or schema.get("oneOf"):
        for choice in choices:
            yield from alternatives(document, choice)
    else:
        yield schema


def at(document: Document, keys: Sequence[str | int]) -> list[Document]:
    """Return the alternative schemas of the value at a path; empty if the path leads nowhere."""
    schemas = list(alternatives(document, document))
    for key in keys:
        below = [child for schema in schemas if (child := _child(schema, str(key))) is not None]
        schemas = [alternative for child in below for alternative in alternatives(document, child)]
    return schemas


def _child(schema: Document, key: str) -> Document | None:
    """Return the schema below a key; None if there can be nothing."""
    if schema.get("type") == "array":
        return dict(schema.get("items", {}))
    if key in schema.get("properties", {}):
        return dict(schema["properties"][key])
    others = schema.get("additionalProperties", "properties" not in schema)
    if schema.get("type", "object") != "object" or others is False:
        return None
    return {} if others is True else dict(others)


def wanted(document: Document, schema: Document) -> str:
    """Return what a schema takes, in words."""
    return _joined(document, alternatives(document, schema))


def _joined(document: Document, schemas: Iterator[Document]) -> str:
    return ", or ".join(dict.fromkeys(_wanted(document, schema) for schema in schemas))


def _wanted(document: Document, schema: Document) -> str:
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        items = schema.get("items")
        return f"a list{_size(schema, 'Items', '')}" + (f" (each {wanted(document, items)})" if items else "")
    bounds = [text.format(_whole(schema[name])) for name, text in _BOUNDS.items() if name in schema]
    if schema.get("type") == "string" and "pattern" in schema:
        bounds.append(f"{_PATTERN} {schema['pattern']}")
    kind = _TYPES.get(schema.get("type", ""), _ANYTHING)
    of, unit = ("Properties", " entries") if schema.get("type") == "object" else ("Length", " characters")
    return ", ".join([kind + _size(schema, of, unit), *bounds])


def _size(schema: Document, of: str, unit: str) -> str:
    """Return the bounds of a text's or a list's length, such as " of 1 to 128 characters"."""
    least, most = schema.get(f"min{of}"), schema.get(f"max{of}")
    if most is None:
        return "" if least is None else f" of at least {least}{unit}" if least > 1 else ", not empty"
    return f" of {least} to {most}{unit}" if least else f" of at most {most}{unit}"


def shown(value: Any) -> str:
    return cut(json.dumps(value, ensure_ascii=False, default=str), MAX_NAME)


def not_wanted(value: Any, words: str) -> str:
    """Return that a value is not what these words of `wanted` say, and how a text is written as a list."""
    remedy = f"; write {shown(value.split(','))}" if isinstance(value, str) and words.startswith("a list") else ""
    return f"{shown(value)} is not {words}{remedy}"


class InvalidValue(NamedTuple):
    """A value that a model of pydantic refuses."""

    path: Path  # keys and indices that lead to it
    kind: str  # `missing`, `extra_forbidden`, or another type of pydantic's errors
    value: Any
    reason: str  # what follows the place, in words
    near: str | None = None  # the key that an unknown one is most like
    choices: Sequence[str] = ()  # the texts of which it should be one; empty if it need not be

    @property
    def place(self) -> str:
        return ".".join(map(str, self.path))

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" if self.path else self.reason


def invalid_values(
    error: ValidationError, values: Any = None, document: Document | None = None, *, show: bool = True
) -> list[InvalidValue]:
    """Return what a model refuses, one a place; of nested places the innermost.

    Args:
        values: what was validated; without it, places have the names of a union's alternatives, too.
        document: the model's JSON schema.
        show: repeat refused values, which may be secrets.
    """
    by_path: dict[Path, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        path = details["loc"] if values is None else _path(values, details)
        by_path.setdefault(path, []).append(details)
    inner = [path for path in by_path if not any(other[: len(path)] == path != other for other in by_path)]
    return [_invalid_value(path, by_path[path], document or {}, show) for path in inner]


def _path(values: Any, details: ErrorDetails) -> Path:
    """Return an error's path without the alternatives of unions that pydantic tried there."""
    path, value = list[str | int](), values
    for number, step in enumerate(details["loc"], 1):
        if isinstance(value, str):  # a form's field with JSON in it
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
        is_last = number == len(details["loc"]) and details["type"] in ("missing", "extra_forbidden")
        if step == _KEY or (isinstance(value, Mapping) and (step in value or is_last)):
            path.append(step)
            value = value.get(step) if isinstance(value, Mapping) else None
        elif isinstance(value, list) and isinstance(step, int):
            path.append(step)
            value = value[step] if step < len(value) else None
    return tuple(path)


def _invalid_value(path: Path, errors: list[ErrorDetails], document: Document, show: bool) -> InvalidValue:
    first = errors[0]
    kind, value = first["type"], first["input"]
    if kind == "missing":
        return InvalidValue(path, kind, value, "is missing" if first["msg"] == _MISSING else first["msg"])
    if kind == "extra_forbidden":
        known = [name for schema in at(document, path[:-1]) for name in schema.get("properties", {})]
        near = nearest(str(path[-1]), known) if path else None
        return InvalidValue(path, kind, value, "is unknown" + (f"; did you mean {near}?" if near else ""), near)
    words = next((text for details in errors if (text := _own_words(details))), None)
    if words is not None:
        return InvalidValue(path, kind, value, words)
    schemas = at(document, path) if document else []
    of_schema = _joined(document, iter(schemas))
    if not of_schema or _ANYTHING in of_schema or _PATTERN in of_schema:
        of_schema = ", or ".join(dict.fromkeys(map(_of_kind, errors)))
    if value in ([], {}) and of_schema.endswith("not empty"):
        return InvalidValue(path, kind, value, f"is empty; it should be {of_schema}")
    reason = not_wanted(value, of_schema) if show else f"must be {of_schema}"
    choices: Sequence[str] = ()
    if kind == "literal_error":
        of_schemas = [choice for schema in schemas for choice in schema.get("enum", [schema.get("const")])]
        texts = [choice for choice in of_schemas if isinstance(choice, str)]
        choices = texts or _QUOTED.findall(first["ctx"]["expected"])
    return InvalidValue(path, kind, value, reason, choices=choices)


def _own_words(details: ErrorDetails) -> str | None:
    """Return the message of a validator that is not pydantic's own."""
    from pydantic_core import core_schema

    kind = details["type"]
    if kind in ("value_error", "assertion_error"):
        return details["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ").rstrip(".")
    is_known = kind in get_args(core_schema.ErrorType) and _words_of(kind)
    return None if is_known else details["msg"].replace("Input should", "it should", 1).rstrip(".")


def _words_of(kind: str) -> str | None:
    return _KINDS.get(kind) or _KINDS.get(kind.partition("_")[0])


def _of_kind(details: ErrorDetails) -> str:
    if details["type"].endswith("too_short") and details.get("ctx", {}).get("min_length") == 1:
        field = details["ctx"].get("field_type")
        return f"{'a text' if field is None else 'an object' if field == 'Dictionary' else 'a list'}, not empty"
    limits = details.get("ctx", {})
    context = {name: _whole(value) for name, value in limits.items()}
    return str(_words_of(details["type"])).format(**context)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
