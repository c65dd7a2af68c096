"""The fields of a form for a recipe's options, made from their JSON schema; and the options that a form was sent with.

A blank field leaves its option out, so the default holds; `null` sets one to nothing that has a default. Names of
fields are `option.` and the path of the option.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from batchyard import config
from batchyard.config import Keys, Schema
from batchyard.errors import RequestError
from batchyard.recipes import Options
from jobs.intake.options import KINDS

PREFIX = "option."
NULL = "null"
LONG = 60
"""A text with a longer default gets an area."""
AREAS = ("prompt", "system", "template")
Kind = Literal["choice", "number", "line", "text", "list", "value"]
"""What a field takes: one of some values, a number, a line, a text as it is, a value on each line, or YAML."""
WHOLE = "[-"
"""A list whose text begins so is YAML as a whole."""
Names = Mapping[str, Sequence[str]]
"""What options may name, by `model`, `reward`, `gate` and `recipe`."""
_KINDS = {**KINDS, "recipe": "recipe"}
"""What an option names, by its own name."""


@dataclass(frozen=True)
class OptionField:
    """An option in a form. `value`: what the field holds; `default`: what holds if that is empty."""

    name: str
    label: str
    hint: str
    kind: Kind
    required: bool
    value: str = ""
    default: str = ""
    choices: Sequence[str] = ()
    names: Sequence[str] = ()

    @property
    def rows(self) -> int:
        return min(12, max(2, self.value.count("\n") + 1))


@dataclass(frozen=True)
class OptionGroup:
    """An option that has fields: those that most people set, and `more`."""

    name: str
    label: str
    hint: str
    fields: Sequence[OptionField]
    more: Sequence[OptionField] = ()


@dataclass(frozen=True)
class OptionForm:
    """The options of a recipe in a form: those that most people set, and all others."""

    basic: Sequence[OptionField | OptionGroup]
    others: Sequence[OptionField | OptionGroup]


def form(document: Mapping[str, Any], values: Mapping[str, Any], names: Names) -> OptionForm:
    """Return the form of options, filled with values. Those that are set are among the basic ones."""
    schema = Schema(document)
    defaults = schema.defaults().values
    fields = sorted(schema.fields, key=lambda name: (name not in schema.required, name in Options.model_fields))
    basic: list[OptionField | OptionGroup] = []
    others: list[OptionField | OptionGroup] = []
    for name in fields:
        own = values.get(name, defaults.get(name))
        entry = _entry(schema, (name,), own, defaults.get(name), names)
        is_basic = name in schema.required or schema.fields[name].get("basic") or own != defaults.get(name)
        (basic if is_basic else others).append(entry)
    return OptionForm(basic, others)


def read(document: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that a form was sent with. Raises RequestError about the path of an option."""
    schema = Schema(document)
    values: dict[str, Any] = {}
    for name, text in fields.items():
        keys = tuple(name.removeprefix(PREFIX).split("."))
        if not name.startswith(PREFIX) or not text.strip() or not schema.at(keys):
            continue
        target = values
        for key in keys[:-1]:
            target = target.setdefault(key, {})
        target[keys[-1]] = _value(schema, keys, text.replace("\r\n", "\n"))
    return values


def sent(document: Mapping[str, Any], fields: Mapping[str, str], names: Names) -> OptionForm:
    """Return the form with its fields as they were sent, readable or not."""
    empty = form(document, {}, names)
    filled = OptionForm(
        [_filled(entry, fields) for entry in empty.basic], [_filled(entry, fields) for entry in empty.others]
    )
    set_ = [entry for entry in filled.others if any(field.value for field in _fields(entry))]
    return OptionForm([*filled.basic, *set_], [entry for entry in filled.others if entry not in set_])


def field_of(options: OptionForm, param: str) -> str | None:
    """Return the name of the field that an error about a path of options is about; None if there is none."""
    path = f"{PREFIX}{param.removeprefix('options').removeprefix('.')}."
    names = [field.name for entry in (*options.basic, *options.others) for field in _fields(entry)]
    within = [name for name in names if path.startswith(f"{name}.")]
    below = [name for name in names if name.startswith(path)]
    return max(within, key=len, default=next(iter(below), None))


def _fields(entry: OptionField | OptionGroup) -> Sequence[OptionField]:
    return [*entry.fields, *entry.more] if isinstance(entry, OptionGroup) else [entry]


def _filled(entry: OptionField | OptionGroup, fields: Mapping[str, str]) -> OptionField | OptionGroup:
    if isinstance(entry, OptionGroup):
        shown, more = ([_with(field, fields) for field in part] for part in (entry.fields, entry.more))
        return OptionGroup(entry.name, entry.label, entry.hint, shown, more)
    return _with(entry, fields)


def _with(field: OptionField, fields: Mapping[str, str]) -> OptionField:
    return OptionField(**vars(field) | {"value": fields.get(field.name, "")})


def _entry(schema: Schema, keys: Keys, value: Any, default: Any, names: Names) -> OptionField | OptionGroup:
    """Return the field of an option; of one that has fields the group of theirs."""
    alternatives = [one for one in schema.at(keys) if one.get("type") != "null"]
    document = schema.fields[keys[0]]
    label, hint = keys[-1].replace("_", " "), str(document.get("description", "")).replace("`", "")
    if len(alternatives) == 1 and "properties" in alternatives[0]:
        group = alternatives[0]
        needed = group.get("required", []) if keys[0] in schema.required else []
        fields = {
            name: _field(
                schema,
                (*keys, name),
                (value or {}).get(name, (default or {}).get(name, part.get("default"))),
                (default or {}).get(name, part.get("default")),
                names,
                hint=str(part.get("description", "")),
                required=name in needed,
            )
            for name, part in group["properties"].items()
        }
        first = {name for name, part in group["properties"].items() if part.get("basic") or fields[name].value}
        first = first or {*fields}
        shown, more = ([fields[name] for name in fields if (name in first) == is_first] for is_first in (True, False))
        return OptionGroup(PREFIX + ".".join(keys), label, hint, shown, more)
    return _field(schema, keys, value, default, names, hint=hint, required=keys[0] in schema.required)


def _field(
    schema: Schema, keys: Keys, value: Any, default: Any, names: Names, *, hint: str, required: bool
) -> OptionField:
    alternatives = [one for one in schema.at(keys) if one.get("type") != "null"]
    kind, choices = _kind(alternatives, default)
    clearable = default is not None and len(alternatives) < len(schema.at(keys))
    if clearable:
        hint = hint if NULL in hint else f"{hint}; {NULL}: none".removeprefix("; ")
        kind = "line" if kind == "number" else kind
    if kind == "line" and (keys[-1] in AREAS or "\n" in str(value)):
        kind = "text"
    known = _names(schema, keys, names)
    if kind == "line" and _KINDS.get(keys[-1]) in ("model", "recipe") and known:
        kind, choices = "choice", known
    unset = (value is None and not clearable) or (value == default and not required)
    return OptionField(
        name=PREFIX + ".".join(keys),
        label=keys[-1].replace("_", " "),
        hint=hint.replace("`", ""),
        kind=kind,
        required=required,
        value="" if unset else _text(schema, keys, kind, value),
        default="" if default in (None, [], {}) else _text(schema, keys, kind, default),
        choices=choices,
        names=() if kind == "choice" else known,
    )


def _kind(alternatives: Sequence[Mapping[str, Any]], default: Any) -> tuple[Kind, Sequence[str]]:
    values = [value for one in alternatives for value in one.get("enum", [one["const"]] if "const" in one else [])]
    types = {one.get("type") for one in alternatives}
    if values and all("enum" in one or "const" in one for one in alternatives):
        return "choice", [str(value) for value in values]
    if types == {"boolean"}:
        return "choice", ["true", "false"]
    if types and types <= {"integer", "number"}:
        return "number", ()
    if types == {"string"}:
        return ("text" if isinstance(default, str) and len(default) > LONG else "line"), ()
    if types == {"array"}:
        return "list", ()
    return "value", ()


def _names(schema: Schema, keys: Keys, names: Names) -> Sequence[str]:
    """Return what may stand in an option: it, or a field of its entries, is called after models, rewards or gates."""
    below = [part for path in ((*keys, "0"), keys) for one in schema.at(path) for part in one.get("properties", {})]
    kind = next((_KINDS[name] for name in (keys[-1], *below) if name in _KINDS), None)
    return names.get(kind or "", ())


def _value(schema: Schema, keys: Keys, text: str) -> Any:
    """Return the value of a field's text. Raises RequestError."""
    alternatives = [one for one in schema.at(keys) if one.get("type") != "null"]
    kind, _ = _kind(alternatives, None)
    if kind == "line":
        return text
    if kind == "list" and text.lstrip()[0] not in WHOLE:
        value: Any = [_read(schema, (*keys, "0"), line.strip()) for line in text.split("\n") if line.strip()]
    else:
        value = _read(schema, keys, text.strip())
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        message = f"{config.name_of(keys)}: this is not valid JSON; put texts such as dates in quotes."
        raise RequestError(message, code="invalid_value", param=f"options.{'.'.join(keys)}") from None
    return value


def _read(schema: Schema, keys: Keys, text: str) -> Any:
    """Return the value of a text as on a command line, but of one in quotes what is in them."""
    if text.startswith('"'):
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(text)
    return schema.read(keys, text)


def _text(schema: Schema, keys: Keys, kind: Kind, value: Any) -> str:
    """Return the text of which `_value` makes this value again."""
    if isinstance(value, str) and kind in ("line", "text", "choice"):
        return value
    if kind == "list" and isinstance(value, list):
        lines = [_entry_text(schema, (*keys, "0"), item) for item in value]
        if lines and lines[0][:1] in WHOLE:
            lines[0] = json.dumps(value[0], ensure_ascii=False)
        return "\n".join(lines)
    if isinstance(value, dict) and value:
        return yaml.safe_dump(_trimmed(value), sort_keys=False, allow_unicode=True, default_flow_style=False).strip()
    return _entry_text(schema, keys, value)


def _entry_text(schema: Schema, keys: Keys, value: Any) -> str:
    """Return a text on one line; one that would be read as something else in quotes."""
    if isinstance(value, str) and "\n" not in value and _read(schema, keys, value) == value:
        return value
    return json.dumps(_trimmed(value), ensure_ascii=False)


def _trimmed(value: Any) -> Any:
    """Return a value without what is null in its mappings: it is the default of what nobody has set."""
    if isinstance(value, dict):
        return {name: _trimmed(inner) for name, inner in value.items() if inner is not None}
    return [_trimmed(inner) for inner in value] if isinstance(value, list) else value
