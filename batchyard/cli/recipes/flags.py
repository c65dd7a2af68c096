"""The flags of a recipe's command, from the schema of its options."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from batchyard.cli import completion

if TYPE_CHECKING:
    from batchyard.config import Layer, Schema

PREFIX = "recipe_option_"
"""What the names of the flags' values begin with, among those of the command's other options."""
_SCALARS = {"string": "TEXT", "integer": "INTEGER", "number": "NUMBER", "boolean": "BOOLEAN"}


def options(schema: Schema, parameters: Sequence[click.Parameter]) -> Iterator[click.Option]:
    """Yield an option for each scalar or list of scalars whose name is free."""
    used = {flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)}
    fields = {"--" + name.replace("_", "-") for name in schema.fields}
    for name, field in schema.fields.items():
        flag = "--" + name.replace("_", "-")
        flags = [flag] if len(name) > 1 or f"-{name}" in used else [f"-{name}", flag]
        choices = [choice for choice in schema.at((name,)) if choice.get("type") != "null"]
        attributes = _attributes(schema, name, choices)
        if flag in used or attributes is None:
            continue
        if attributes.get("is_flag"):
            flags = [f"{flag}/--no-{flag.removeprefix('--')}"]
        singular = flag.removesuffix("s")
        if attributes.get("multiple") and singular not in {*used, *fields}:
            flags.append(singular)
        default = field.get("default")
        text = field.get("description", "")
        if default not in (None, [], {}, ""):
            text += f" [{default if isinstance(default, str) else json.dumps(default)}]"
        text += " [required]" if name in schema.required else ""
        yield click.Option([PREFIX + name, *flags], help=text.strip(), default=None, **attributes)


def _attributes(schema: Schema, name: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return click's attributes of an option; None unless scalar or list of scalars."""
    if choices and all(choice.get("type") == "boolean" for choice in choices):
        return {"is_flag": True}
    metavars = [metavar for choice in choices if (metavar := _metavar(choice)) is not None]
    if metavars:
        return {"metavar": "|".join(metavars), **_completed(name)}
    items = [metavar for choice in schema.at((name, "0")) if (metavar := _metavar(choice)) is not None]
    if items and any(choice.get("type") == "array" for choice in choices):
        return {"multiple": True, "metavar": f"{'|'.join(items)},…", **_completed(name)}
    return None


def _metavar(schema: Mapping[str, Any]) -> str | None:
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    return "|".join(map(str, values)) if values else _SCALARS.get(schema.get("type", ""))


def _completed(name: str) -> dict[str, Any]:
    return {"shell_complete": completion.models} if name in ("model", "models") else {}


def layers(schema: Schema, flags: Mapping[str, Any], overrides: Sequence[str]) -> list[Layer]:
    """Return the layers of a command over its files: its flags, its `key=value`."""
    from batchyard import config

    given = {name.removeprefix(PREFIX): value for name, value in flags.items() if value not in (None, ())}
    return [
        *(config.flag(schema, name, value) for name, value in given.items()),
        *(config.override(schema, text) for text in overrides),
    ]
