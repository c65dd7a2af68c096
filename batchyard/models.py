"""models.toml: the models of a deployment, as plain data. `inference.catalog` checks them against their engines."""

import copy
import functools
import hashlib
import importlib.util
import json
import operator
import re
import tomllib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from batchyard.endpoints.guards import Guard
from batchyard.endpoints.path import EndpointPath
from batchyard.errors import ConfigurationError
from batchyard.schema_words import invalid_values
from batchyard.tariffs import CURRENCY, MICRO, PLACES, Prices
from batchyard.wording import NEWER, suggestion

CAPACITY = 128
"""Requests that an engine runs at once, if it states no other number."""
OF_SERVERS = ("command", "python", "env", "ready", "stop_seconds")
"""`engine_args` of engine server that may stand in a model's entry itself."""
_DERIVED = re.compile(r".+~[0-9a-f]{8}", re.DOTALL)


Price = Annotated[Decimal, Field(ge=0, lt=10**9, decimal_places=PLACES)]
# A slip of the pen shall not start processes until the machine ends.
Replicas = Annotated[int, Field(ge=1, le=1000)]
Places = Annotated[int, Field(ge=1, le=10**6)]


class _TomlTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tariff(_TomlTable):
    """The prices of a model: of a million tokens, and of an hour of its engines.

    `cached_input` is that of input tokens from the prefix cache, by default that of all input.
    """

    currency: str
    input: Price | None = None
    cached_input: Price | None = None
    output: Price | None = None
    hour: Price | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.input is None) != (self.output is None):
            raise ValueError("input and output go together; set the other one, too, to 0 if it costs nothing")
        if self.cached_input is not None and self.input is None:
            raise ValueError("cached_input needs input and output")
        if self.input is None and self.hour is None:
            raise ValueError("set input and output, or hour")
        return self

    def prices(self) -> Prices:
        cached = self.input if self.cached_input is None else self.cached_input
        prices = (self.input, cached, self.output, self.hour)
        return Prices(self.currency, *(int((price or Decimal(0)) * MICRO) for price in prices))


class Adapter(_TomlTable):
    """LoRA weights that a model's engine loads beside the model's: a folder as PEFT writes it, or a hub id."""

    source: str = ""


class LiveSettings(_TomlTable):
    """How a model answers live requests: `live` in models.toml, a word or a table.

    `ttft_ms` and `itl_ms` are targets of the time to a live request's first token and between two later ones. Batches
    get shorter steps for them where the engine can, and otherwise fewer places while they are missed.
    """

    mode: Literal["on", "off", "always"] = Field(
        "on", description="always: its engine starts with the deployment, and stays"
    )
    ttft_ms: PositiveFloat = 1000.0
    itl_ms: PositiveFloat = 100.0
    bound_steps: bool = Field(True, description="engine vllm: its steps have the targets while live requests run")

    @property
    def step_seconds(self) -> float | None:
        """The target of a step beside live requests; None without bound."""
        if not self.bound_steps or self.mode == "off":
            return None
        # A first token waits for the end of a step, and comes with the next.
        return min(self.itl_ms, self.ttft_ms / 2) / 1000


_TEXT = ("/v1/chat/completions", "/v1/completions")


class ModelSpec(_TomlTable):
    """One entry of models.toml. `engine_args` go to the engine as they are."""

    name: str
    engine: str
    source: str = ""
    endpoints: tuple[EndpointPath, ...] = _TEXT
    replicas: Replicas = Field(1, description="the most there may be: a model runs with those that have room")
    max_replicas: Replicas | None = Field(None, description="engine vllm-job: as many as there is room and work for")
    max_segments: Places = Field(2, description="segments that fill the engine: one, and others due sooner")
    max_in_flight: Places | None = Field(None, description="requests in one replica at once; see in_flight")
    num_gpus: float | None = Field(
        None, ge=0, le=1000, description="GPUs of one replica; unset: as many as the engine needs"
    )
    engine_args: dict[str, Any] = Field(default_factory=dict)
    price: Tariff | None = Field(None, description="what its tokens or its time cost; unset: nobody counts that")
    live: LiveSettings = LiveSettings()
    guard: Guard | None = Field(None, description="ends answers that repeat themselves")
    reproducible: bool = Field(
        False,
        exclude_if=operator.not_,  # as adapters
        description="answers do not depend on other requests; refused where the engine cannot guarantee it",
    )
    adapters: dict[str, Adapter] = Field(
        default_factory=dict,
        exclude_if=operator.not_,  # so that a model without adapters has the hash that it had before there were any
        description="by the name that requests have as `model`",
    )

    @field_validator("live", mode="before")
    @classmethod
    def _live(cls, value: Any) -> Any:
        return {"mode": value} if isinstance(value, str) else value

    @field_validator("max_replicas")
    @classmethod
    def _range(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and value < info.data.get("replicas", 1):
            raise ValueError("must be at least replicas")
        return value

    def in_flight(self, capacity: int = CAPACITY) -> int:
        """Return the requests to keep in a replica that runs `capacity` at once: twice as many."""
        return self.max_in_flight or 2 * capacity

    @property
    def config_sha256(self) -> str:
        """SHA-256 of what the engine is started with: the key of measured speeds and cached answers."""
        fields = self.model_dump(mode="json", exclude={"price", "live", "guard"})
        if set(_TEXT) <= set(self.endpoints):  # a model for text answers alike on however many it is served
            fields["endpoints"] = list(_TEXT)
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def served_by_name(models: Mapping[str, ModelSpec]) -> dict[str, ModelSpec]:
    """Return the models by every name that a request may have: theirs, and after each those of its adapters."""
    return {name: spec for spec in models.values() for name in (spec.name, *spec.adapters)}


def derived_name(spec: ModelSpec) -> str:
    """Return the name of a model with the configuration `spec`, which is derived from the model `spec.name`."""
    return f"{spec.name}~{spec.config_sha256[:8]}"


def is_derived(name: str) -> bool:
    """True if that is the name of a derived model; models.toml has no such names."""
    return _DERIVED.fullmatch(name) is not None


def vllm_installed() -> bool:
    return importlib.util.find_spec("vllm") is not None


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of a models.toml by name, with ModelSpec's keys and unchecked values."""
    return entries_of(path, parsed(path))


def toml(text: str) -> dict[str, Any]:
    """Return a document of TOML. Raises ValueError, which says why it is none."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parsed(path: Path) -> dict[str, Any]:
    """Return the content of a models.toml. Raises ConfigurationError if the file as a whole cannot be used."""
    try:
        document = toml(path.read_text("utf-8-sig"))
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{path}: no such file; name the models file with --models or BATCHYARD_MODELS"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from error
    stray = [key for key in document if key not in ("models", "currency", "hosted")]
    if stray:
        raise ConfigurationError(f"{path}: unknown key {stray[0]!r}; models are tables named [models.<name>]")
    currency = document.get("currency")
    if currency is not None and not (isinstance(currency, str) and CURRENCY.fullmatch(currency)):
        raise ConfigurationError(f'{path}: currency: not three capital letters; write one such as "EUR"')
    hosted(path, document)
    return document


def hosted(path: Path, document: Mapping[str, Any]) -> dict[str, Prices]:
    """Return the prices of the hosted services that plans compare with, by their names.

    They are the tables [hosted.<name>] of a parsed models.toml. Raises ConfigurationError.
    """
    found, services = {}, document.get("hosted", {})
    for name, entry in services.items() if isinstance(services, dict) else [("", services)]:
        where = f"{path}: hosted.{name}".rstrip(".")
        if not isinstance(entry, dict) or entry.keys() != {"input", "output"}:
            raise ConfigurationError(f"{where}: must be a table with the prices input and output of a million tokens")
        try:
            found[name] = Tariff.model_validate(_with_currency(where, entry, document.get("currency"))).prices()
        except ValidationError as error:
            raise ConfigurationError(f"{where}.{invalid_values(error, entry)[0]}") from error
    return found


def entries_of(
    path: Path, document: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any] | None] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the entries of a parsed models.toml, as `read`.

    Args:
        changes: entries that take the place of those of the file, by name; None removes one.
    """
    declared = document.get("models")
    entries = copy.deepcopy({**declared, **(changes or {})}) if isinstance(declared, dict) else None
    entries = entries and {name: entry for name, entry in entries.items() if entry is not None}
    currency = document.get("currency")
    if not entries:
        raise ConfigurationError(f"{path}: no models; add a table [models.<name>] with engine and source")
    for name, entry in entries.items():
        if is_derived(name):
            raise ConfigurationError(
                f"{path}: models.{name}: a name with ~ and eight hexadecimal digits at its end is that of a model "
                "which a job derives from another; choose another name"
            )
        if not isinstance(entry, dict):
            raise ConfigurationError(f"{path}: models.{name}: must be a table with engine and source")
        if isinstance(arguments := entry.get("engine_args", {}), dict):
            moved = {key: entry.pop(key) for key in OF_SERVERS if key in entry}
            entry |= {"engine_args": moved | arguments} if moved else {}
        _check_keys(f"{path}: models.{name}", entry, [field for field in ModelSpec.model_fields if field != "name"])
    _check_adapter_names(path, entries)
    for name, entry in entries.items():
        if isinstance(price := entry.get("price"), dict):
            entry["price"] = _with_currency(f"{path}: models.{name}.price", price, currency)
    return entries


def _with_currency(where: str, price: dict[str, Any], currency: str | None) -> dict[str, Any]:
    if "currency" in price:
        raise ConfigurationError(f"{where}.currency: all prices have one currency; set it once, above the tables")
    _check_keys(where, price, [field for field in Tariff.model_fields if field != "currency"])
    if currency is None:
        raise ConfigurationError(f'{where}: in no currency; set one above the first table, such as currency = "EUR"')
    return {**price, "currency": currency}


def newer(file: Path, name: str) -> str | None:
    """Return NEWER if a models.toml names a model or adapter that the running server does not serve; else None."""
    try:
        return NEWER if name in _named(file, file.stat().st_mtime_ns) else None
    except (OSError, ConfigurationError):
        return None


@functools.lru_cache(maxsize=1)
def _named(file: Path, _changed_at: int) -> frozenset[str]:
    """Return the models and adapters that a models.toml names, read once after each change. Raises as `read`."""
    entries = read(file)
    adapters = (entry.get("adapters") for entry in entries.values())
    return frozenset(entries).union(*(names for names in adapters if isinstance(names, dict)))


def _check_keys(where: str, entry: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in entry:
        if key not in keys:
            raise ConfigurationError(f"{where}.{key}: unknown key; {suggestion(key, keys, '{}')}")


def _check_adapter_names(path: Path, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse an adapter with the name of another adapter, or of a model: a request says no more than a name."""
    places = {name: f"models.{name}" for name in entries}
    for model, entry in entries.items():
        adapters = entry.get("adapters")
        for name in adapters if isinstance(adapters, dict) else ():
            where = f"models.{model}.adapters.{name}"
            if name in places or is_derived(name) or not name:
                taken = f"{places[name]} has this name" if name in places else "no adapter can have this name"
                raise ConfigurationError(f"{path}: {where}: {taken}; choose another name")
            places[name] = where


def written(name: str, entry: Mapping[str, Any], table: str = "models") -> str:
    """Return an entry as `read` reads it, as TOML: keys of their own first, then the table engine_args."""
    plain = {key: value for key, value in entry.items() if key != "engine_args" and value is not None}
    lines = [f"[{table}.{_key(name)}]", *(f"{_key(key)} = {_value(value)}" for key, value in plain.items())]
    if arguments := entry.get("engine_args"):
        lines += [f"[{table}.{_key(name)}.engine_args]"]
        lines += [f"{_key(key)} = {_value(value)}" for key, value in arguments.items() if value is not None]
    return "".join(f"{line}\n" for line in lines)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    """Return a value of JSON as TOML, which has no null: such members are left out."""
    if isinstance(value, Mapping):
        members = ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items() if each is not None)
        return f"{{{members}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each) for each in value if each is not None)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value) if isinstance(value, float) else json.dumps(value)
