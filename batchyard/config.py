"""A recipe's options in the terminal: defaults, files, flags and `key=value`, each over those before it.

A server gets resolved JSON, never files. Everything is checked against the JSON schema of the recipe's options.

OmegaConf, YAML and jsonschema are imported where they are used: `--help` needs a Schema only.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from batchyard.errors import ConfigurationError
from batchyard.schema_words import WORDED, alternatives, at, not_wanted, shown, wanted
from batchyard.wording import MAX_LIST, cut, nearest

if TYPE_CHECKING:
    from jsonschema import ValidationError

Keys: TypeAlias = tuple[str, ...]
"""A path of keys: ("sampling", "temperature")."""

EXTENDS = "extends"
_PATH = re.compile(r"(?:[^.\[\]=]+|\[[^\[\]]+\])(?:\.[^.\[\]=]+|\[[^\[\]]+\])*")
_KEY = re.compile(r"\[([^\]]+)\]|([^.\[\]]+)")


class Origin(NamedTuple):
    """Where a value comes from: `name` is the file, the flag or the text of the override."""

    kind: Literal["default", "file", "flag", "override"]
    name: str

    def __str__(self) -> str:
        return self.name


class Layer(NamedTuple):
    """Values of one origin, nested as in the options."""

    origin: Origin
    values: Mapping[str, Any]


class Setting(NamedTuple):
    """A value in force: `keys` lead to a scalar, a list or an empty mapping."""

    keys: Keys
    value: Any
    origin: Origin


DEFAULT = Origin("default", "default")


class Schema:
    """The JSON schema of a recipe's options, as pydantic writes it."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    @property
    def fields(self) -> Mapping[str, Any]:
        return dict(self._document.get("properties", {}))

    @property
    def required(self) -> Sequence[str]:
        return list(self._document.get("required", []))

    def defaults(self) -> Layer:
        return Layer(DEFAULT, self._defaults(self._document))

    def _defaults(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, field in schema.get("properties", {}).items():
            if "default" in field:
                values[name] = field["default"]
            elif name not in schema.get("required", []):
                for model in alternatives(self._document, field):
                    if "properties" in model:
                        values[name] = self._defaults(model)
        return values

    def at(self, keys: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return the alternative schemas of the value at a path; empty if the path leads nowhere."""
        return at(self._document, keys)

    def read(self, keys: Keys, text: str) -> Any:
        """Return the value of a text from the command line.

        It is what YAML makes of it, such as a number, a list or a mapping; but the text as it is where that is a text,
        or where the schema takes a text and not what YAML makes of it. Where the schema takes texts in a list only, a
        text is one, with commas between its values.
        """
        import yaml
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=False)["value"]  # type: ignore[call-overload,index]
        except (yaml.YAMLError, OmegaConfBaseException):
            return text
        if not self._accepts(keys, value) and not self._accepts(keys, text) and self._accepts(keys, text.split(",")):
            return text.split(",")
        texts = isinstance(value, str) or (not self._accepts(keys, value) and self._accepts(keys, text))
        return text if texts else value

    def read_list(self, keys: Keys, texts: Iterable[str]) -> list[Any]:
        """Return the list of a flag: repeated, with commas, or in brackets as in YAML."""
        values: list[Any] = []
        for text in texts:
            value = self.read(keys, text) if text.startswith("[") else text.split(",")
            values += [self.read((*keys, "0"), item) for item in value] if isinstance(value, list) else [value]
        return values

    def error(self, values: Mapping[str, Any], *, complete: bool) -> ValidationError | None:
        """Return the most telling fault of options, None if there is none."""
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import best_match

        errors = Draft202012Validator(self._document).iter_errors(values)
        return cast(
            "ValidationError | None", best_match(error for error in errors if complete or error.validator != "required")
        )

    def wanted(self, schema: Mapping[str, Any]) -> str:
        """Return what a schema takes, in words."""
        return wanted(self._document, schema)

    def _accepts(self, keys: Keys, value: Any) -> bool:
        """True if a value may stand there. One with an interpolation in it is judged later."""
        from jsonschema import Draft202012Validator

        schemas, definitions = self.at(keys), self._document.get("$defs", {})
        return any(Draft202012Validator({**schema, "$defs": definitions}).is_valid(value) for schema in schemas)


def path(text: str) -> Keys:
    """Return the keys of `sampling.temperature`. A key with dots in it stands in brackets: `reward[org/set-1.5]`."""
    if not _PATH.fullmatch(text):
        raise ValueError(f"{text!r} is no key; write it as in sampling.temperature")
    return tuple(whole or plain for whole, plain in _KEY.findall(text))


def name_of(keys: Sequence[str | int]) -> str:
    """Return keys as `path` reads them."""
    names = [str(key) for key in keys]
    written = "".join(f"[{name}]" if "." in name else f".{name}" for name in names)
    return written.removeprefix(".")


def override(schema: Schema, text: str) -> Layer:
    """Return the layer of `a.b=value`."""
    name, separator, value = text.partition("=")
    try:
        if not separator:
            raise ValueError("write KEY=VALUE")
        keys = path(name)
        expanded = _expanded(schema, schema.read(keys, value), keys)
    except ValueError as error:
        raise ConfigurationError(f"{text}: {error}") from error
    return Layer(Origin("override", text), _nested([(keys, expanded)]))


def flag(schema: Schema, name: str, value: str | bool | Sequence[str]) -> Layer:
    """Return the layer of an option's flag."""
    origin = Origin("flag", "--" + name.replace("_", "-"))
    try:
        if isinstance(value, str):
            read = schema.read((name,), value)
        else:
            read = value if isinstance(value, bool) else schema.read_list((name,), value)
        return Layer(origin, {name: _expanded(schema, read, (name,))})
    except ValueError as error:
        raise ConfigurationError(f"{origin}: {error}") from error


def files(schema: Schema, file: Path) -> list[Layer]:
    """Return the layers of a file: those that it extends, then its own."""
    layers: list[Layer] = []
    seen: list[Path] = []
    current: Path | None = file
    while current is not None:
        if current.resolve() in [earlier.resolve() for earlier in seen]:
            chain = " extends ".join(map(str, [*seen, current]))
            raise ConfigurationError(f"{file}: {chain}: a file cannot extend itself")
        seen.append(current)
        values = _parsed(current)
        base = values.pop(EXTENDS, None)
        if base is not None and not isinstance(base, str):
            raise ConfigurationError(f"{current}: {EXTENDS}: {shown(base)} is not the name of a file")
        try:
            layers.insert(0, Layer(Origin("file", str(current)), _expanded(schema, values, ())))
        except ValueError as error:
            raise ConfigurationError(f"{current}: {error}") from error
        current = None if base is None else current.parent / base
    return layers


def resolve(schema: Schema, layers: Iterable[Layer], *, complete: bool = True) -> list[Setting]:
    """Return the values that are in force, with interpolations filled in, in the order of the schema.

    Mappings are merged key by key, everything else is replaced. The strongest layer is the last.
    """
    settings: dict[Keys, Setting] = {}
    for layer in (schema.defaults(), *layers):
        for keys, value in _leaves(layer.values):
            _put(settings, Setting(keys, value, layer.origin))
    settings = _interpolated(settings)
    values = _nested((setting.keys, setting.value) for setting in settings.values())
    error = schema.error(values, complete=complete)
    if error is not None:
        raise ConfigurationError(_message(schema, error, settings))
    order = list(schema.fields)
    return sorted(settings.values(), key=lambda setting: order.index(setting.keys[0]))


def options(settings: Iterable[Setting]) -> dict[str, Any]:
    """Return the options to send: those that differ from their defaults."""
    settings = list(settings)
    changed = {setting.keys[0] for setting in settings if setting.origin.kind != "default"}
    return _nested((setting.keys, setting.value) for setting in settings if setting.keys[0] in changed)


def _put(settings: dict[Keys, Setting], new: Setting) -> None:
    """Set a value; what lies above or below its path gives way."""
    below = [keys for keys in settings if keys[: len(new.keys)] == new.keys and keys != new.keys]
    if new.value == {} and below:
        return
    above = [new.keys[:length] for length in range(1, len(new.keys))]
    for keys in (*below, *above):
        settings.pop(keys, None)
    settings[new.keys] = new


def _leaves(value: Any, above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yield what is no mapping, or an empty one, with the keys that lead to it."""
    if isinstance(value, Mapping) and (value or above == ()):
        for key, child in value.items():
            yield from _leaves(child, (*above, key))
    else:
        yield above, value


def _nested(leaves: Iterable[tuple[Keys, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for (*above, last), value in leaves:
        target = values
        for key in above:
            target = target.setdefault(key, {})
        target[last] = value
    return values


def _interpolated(settings: Mapping[Keys, Setting]) -> dict[Keys, Setting]:
    """Return the settings with `${…}` filled in. Those that refer to a mapping become several."""
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    resolved: dict[Keys, Setting] = {}
    for setting in settings.values():
        where = _where(setting.origin, setting.keys)
        try:
            OmegaConf.create({"value": setting.value})
        except OmegaConfBaseException as error:
            raise ConfigurationError(f"{where}: {_reason(error)}") from error
    tree = OmegaConf.create(_nested((setting.keys, setting.value) for setting in settings.values()))
    for setting in settings.values():
        where = _where(setting.origin, setting.keys)
        try:
            node: Any = tree
            for key in setting.keys:
                node = node[key]
            value = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        except MissingMandatoryValue as error:
            raise ConfigurationError(f"{where}: it is ??? there, so set it in another file or by a flag") from error
        except OmegaConfBaseException as error:
            raise ConfigurationError(f"{where}: {_reason(error)}") from error
        for keys, leaf in _leaves(value, setting.keys):
            _put(resolved, Setting(keys, leaf, setting.origin))
    return resolved


def _reason(error: Exception) -> str:
    """Return an error's own words on one line, without those about OmegaConf's objects."""
    words = str(error).replace('in "<unicode string>", ', "").partition("\n    full_key: ")[0]
    return " ".join(words.rpartition("resolving interpolation: ")[2].split())


def _message(schema: Schema, error: ValidationError, settings: Mapping[Keys, Setting]) -> str:
    """Return where a value stands that the schema refuses, and what is wanted there."""
    keys = [str(key) for key in error.absolute_path]
    refusing, value = cast(Mapping[str, Any], error.schema), cast(Any, error.instance)
    if error.validator == "required":
        missing = next(name for name in refusing["required"] if name not in value)
        if not keys:
            return f"{missing} is missing: set it in a file, by a flag, or with {missing}=VALUE"
        return f"{_where(_origin(keys, settings), keys)}: {shown(value)} has no {missing}"
    if error.validator == "additionalProperties":
        known = refusing.get("properties", {})
        unknown = next(name for name in value if name not in known)
        near = nearest(unknown, known)
        others = f"available: {cut(', '.join(known), MAX_LIST)}" if known else "nothing may stand there"
        remedy = f"did you mean {name_of([*keys, near])}?" if near else others
        return f"{_where(_origin([*keys, unknown], settings), [*keys, unknown])}: unknown key; {remedy}"
    where = _where(_origin(keys, settings), keys)
    if error.validator in WORDED:
        return f"{where}: {not_wanted(value, schema.wanted(refusing))}"
    return f"{where}: {error.message}"


def _origin(keys: Sequence[str], settings: Mapping[Keys, Setting]) -> Origin:
    """Return where the value at a path comes from: of a mapping, one of its values."""
    path = tuple(keys)
    related = [s for s in settings.values() if s.keys == path[: len(s.keys)] or s.keys[: len(path)] == path]
    return related[-1].origin


def _where(origin: Origin, keys: Sequence[str]) -> str:
    """Return origin and key in words. A flag or an override says its key itself."""
    return f"{origin}: {name_of(keys)}" if origin.kind in ("default", "file") else str(origin)


def _expanded(schema: Schema, values: Any, above: Keys) -> Any:
    """Return a mapping with dotted keys as paths, unless its names are free."""
    if isinstance(values, float) and not math.isfinite(values):
        raise ValueError(f"{name_of(above)}: {values} is no number of JSON")
    if isinstance(values, list):
        return [_expanded(schema, value, (*above, str(index))) for index, value in enumerate(values)]
    if not isinstance(values, Mapping):
        if values is not None and not isinstance(values, str | int | float):
            raise ValueError(f"{name_of(above)}: {values} is a {type(values).__name__}; put it in quotes")
        return values
    free = any(
        "properties" not in of_names and of_names.get("type", "object") == "object" for of_names in schema.at(above)
    )
    leaves: dict[Keys, Setting] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise ValueError(f"{name_of((*above, str(key)))}: the key {key} is no text; put it in quotes")
        keys = (key,) if free else path(key)
        for below, leaf in _leaves(_expanded(schema, value, (*above, *keys)), keys):
            _put(leaves, Setting(below, leaf, DEFAULT))
    return _nested((leaf.keys, leaf.value) for leaf in leaves.values())


def _yaml(text: str) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.create(text), resolve=False)


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    ".yaml": _yaml,
    ".yml": _yaml,
    ".toml": tomllib.loads,
    ".json": json.loads,
}


def _parsed(file: Path) -> dict[str, Any]:
    """Return the mapping in a file."""
    import yaml
    from omegaconf.errors import OmegaConfBaseException

    parser = _PARSERS.get(file.suffix.lower())
    if parser is None:
        raise ConfigurationError(f"{file}: a configuration file is named {', '.join(_PARSERS)}")
    try:
        values = parser(file.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from error
    except AssertionError:  # OmegaConf's, for a number on its own
        values = None
    except (ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigurationError(f"{file}: {_reason(error)}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"{file}: it holds no mapping of options")
    return values
