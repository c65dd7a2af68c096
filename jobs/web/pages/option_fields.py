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


def form(
    document: Mapping[str, Any], values: Mapping[str, Any], names: Names, texts: Mapping[str, str] | None = None
) -> OptionForm:
    """Return the form of options, filled with values, or with the `texts` that it was sent with, readable or not.

    Those that are set are among the basic ones.
    """
    schema = Schema(document)
    fields = _Fields(schema, names, texts)
    defaults = schema.defaults().values
    basic: list[OptionField | OptionGroup] = []
    others: list[OptionField | OptionGroup] = []
    for name in sorted(schema.fields, key=lambda name: (name not in schema.required, name in Options.model_fields)):
        entry = fields.entry(name, values.get(name, defaults.get(name)), defaults.get(name))
        is_set = any(field.value for field in _fields_of(entry))
        is_basic = name in schema.required or schema.fields[name].get("basic") or is_set
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


def field_of(options: OptionForm, param: str) -> str | None:
    """Return the name of the field that an error about a path of options is about; None if there is none."""
    path = f"{PREFIX}{param.removeprefix('options').removeprefix('.')}."
    names = [field.name for entry in (*options.basic, *options.others) for field in _fields_of(entry)]
    within = [name for name in names if path.startswith(f"{name}.")]
    below = [name for name in names if name.startswith(path)]
    return max(within, key=len, default=next(iter(below), None))


def _fields_of(entry: OptionField | OptionGroup) -> Sequence[OptionField]:
    return [*entry.fields, *entry.more] if isinstance(entry, OptionGroup) else [entry]


@dataclass(frozen=True)
class _Fields:
    """Makes the fields of options that hold values, or the `texts` of a form that was sent."""

    schema: Schema
    names: Names
    texts: Mapping[str, str] | None

    def entry(self, name: str, value: Any, default: Any) -> OptionField | OptionGroup:
        """Return the field of an option; of one that has fields the group of theirs."""
        document, required = self.schema.fields[name], name in self.schema.required
        alternatives = [one for one in self.schema.at((name,)) if one.get("type") != "null"]
        field = self._field((name,), document, value, default, required=required)
        if len(alternatives) != 1 or "properties" not in alternatives[0]:
            return field
        group = alternatives[0]
        needed = group.get("required", []) if required else []
        fields = {}
        for key, part in group["properties"].items():
            unset = (default or {}).get(key, part.get("default"))
            own = (value or {}).get(key, unset)
            fields[key] = self._field((name, key), part, own, unset, required=key in needed)
        first = {key for key, part in group["properties"].items() if part.get("basic") or fields[key].value}
        shown = [field for key, field in fields.items() if key in first or not first]
        more = [field for field in fields.values() if field not in shown]
        return OptionGroup(field.name, field.label, field.hint, shown, more)

    def _field(
        self, keys: Keys, document: Mapping[str, Any], value: Any, default: Any, *, required: bool
    ) -> OptionField:
        name, hint = PREFIX + ".".join(keys), str(document.get("description", ""))
        alternatives = [one for one in self.schema.at(keys) if one.get("type") != "null"]
        kind, choices = _kind(alternatives, default)
        clearable = default is not None and len(alternatives) < len(self.schema.at(keys))
        if clearable:
            hint = hint if NULL in hint else f"{hint}; {NULL}: none".removeprefix("; ")
            kind = "line" if kind == "number" else kind
        if kind == "line" and (keys[-1] in AREAS or "\n" in str(value)):
            kind = "text"
        known = _names(self.schema, keys, self.names)
        if kind == "line" and _KINDS.get(keys[-1]) in ("model", "recipe") and known:
            kind, choices = "choice", known
        unset = (value is None and not clearable) or (value == default and not required)
        text = "" if unset else _text(self.schema, keys, kind, value)
        return OptionField(
            name=name,
            label=keys[-1].replace("_", " "),
            hint=hint.replace("`", ""),
            kind=kind,
            required=required,
            value=text if self.texts is None else self.texts.get(name, ""),
            default="" if default in (None, [], {}) else _text(self.schema, keys, kind, default),
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
