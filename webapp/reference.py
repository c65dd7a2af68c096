"""The OpenAPI document as tables for people, for the page /docs without scripts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class FieldRow(NamedTuple):
    """A parameter or a field. `models` are the models that its value may have."""

    name: str
    kind: str
    description: str
    models: list[str]


@dataclass(frozen=True)
class Operation:
    """A method of a path. `body` and `answers`, by status, name models, or media types where there is none."""

    id: str
    method: str
    path: str
    summary: str
    parameters: list[FieldRow]
    body: str
    answers: dict[str, str]


def operations(document: Mapping[str, Any]) -> dict[str, list[Operation]]:
    by_tag: dict[str, list[Operation]] = {}
    for path, methods in document["paths"].items():
        for method, entry in methods.items():
            by_tag.setdefault(entry["tags"][0], []).append(_operation(path, method, entry))
    return by_tag


def models(document: Mapping[str, Any]) -> dict[str, list[FieldRow]]:
    fields = {}
    for name, schema in sorted(document["components"]["schemas"].items()):
        required, properties = schema.get("required", []), schema.get("properties", {})
        fields[name] = [_row(field, value, required=field in required) for field, value in properties.items()]
    return {name: rows for name, rows in fields.items() if rows}


def _operation(path: str, method: str, entry: Mapping[str, Any]) -> Operation:
    parameters = []
    for one in entry.get("parameters", []):
        row = _row(one["name"], one["schema"], required=one.get("required", False))
        described = one.get("description") or row.description
        parameters.append(row._replace(kind=f"{one['in']}: {row.kind}", description=described))
    answers = {status: _content(answer) for status, answer in sorted(entry["responses"].items())}
    body = _content(entry.get("requestBody", {}))
    return Operation(entry["operationId"], method.upper(), path, entry["summary"], parameters, body, answers)


def _content(part: Mapping[str, Any]) -> str:
    """Return the model of a body, or its media type; empty if there is no body."""
    for media_type, content in part.get("content", {}).items():
        names = _models(content.get("schema", {}))
        return names[0] if names else str(media_type)
    return ""


def _row(name: str, schema: Mapping[str, Any], *, required: bool) -> FieldRow:
    kind = _kind(schema) + ("" if required else ", optional")
    return FieldRow(name, kind, schema.get("description", ""), _models(schema))


def _kind(schema: Mapping[str, Any]) -> str:
    """Return the type of a value in words: `text`, `list of integers`, `completed | failed`."""
    if "$ref" in schema:
        return _name(schema["$ref"])
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_kind(one) for one in schema[several]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "any value"))


def _models(schema: Any) -> list[str]:
    if isinstance(schema, Mapping):
        inner = [_name(schema["$ref"])] if "$ref" in schema else []
        return list(dict.fromkeys(inner + [name for value in schema.values() for name in _models(value)]))
    return [name for value in schema for name in _models(value)] if isinstance(schema, list) else []


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]
