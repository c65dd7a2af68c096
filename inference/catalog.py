"""The models that a deployment serves: models.toml, checked against what its engines say of themselves."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from batchyard import models
from batchyard.endpoints.guards import GUARDED, REPETITION
from batchyard.errors import ConfigurationError
from batchyard.models import Adapter, ModelSpec
from batchyard.schema_words import invalid_values
from batchyard.wording import hint, quoted
from inference import heads
from inference.engines import adapters, registry
from inference.engines.weights import folder_of

AUTO = "auto"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def load(path: Path, *, allow_simulated: bool = False) -> dict[str, ModelSpec]:
    """Return the models of a models.toml by name. Raises ConfigurationError with file, key and remedy."""
    return checked(path, models.read(path), allow_simulated=allow_simulated)


def checked(path: Path, entries: Mapping[str, dict[str, Any]], *, allow_simulated: bool) -> dict[str, ModelSpec]:
    """Return the models of entries by name, as `load`. Relative folders are beside `path`."""
    return {name: _spec(f"{path}: ", path.parent, name, entry, allow_simulated) for name, entry in entries.items()}


def each(path: Path, *, allow_simulated: bool = False) -> dict[str, ModelSpec | ConfigurationError]:
    """Return models of a models.toml by name, or their errors. Raises ConfigurationError for the file."""
    outcomes: dict[str, ModelSpec | ConfigurationError] = {}
    for name, entry in models.read(path).items():
        try:
            outcomes[name] = _spec("", path.parent, name, entry, allow_simulated)
        except ConfigurationError as error:
            outcomes[name] = error
    return outcomes


def derived(base: str, entry: dict[str, Any]) -> ModelSpec:
    """Return the model with this entry that is derived from a served one. Raises ConfigurationError."""
    spec = _spec("", Path(), base, entry, allow_simulated=True)  # or the base would not be served
    return spec.model_copy(update={"name": models.derived_name(spec)})


def _spec(place: str, folder: Path, name: str, entry: dict[str, Any], allow_simulated: bool) -> ModelSpec:
    """Return the model of an entry."""
    where = f"{place}models.{name}"
    if entry.get("engine") == AUTO:
        entry = entry | {"engine": "vllm" if models.vllm_installed() else "transformers"}
    try:
        spec = ModelSpec(name=name, **entry)
    except ValidationError as error:
        first = invalid_values(error, {"name": name, **entry})[0]
        raise ConfigurationError(f"{where}.{first}") from error
    names = registry.ENGINES.names()
    if spec.engine not in names:
        *others, last = map(repr, [AUTO, *names])
        said = f"{where}.engine: must be {', '.join(others)} or {last}, not {quoted(spec.engine)}"
        raise ConfigurationError(said + hint(spec.engine, [AUTO, *names]))
    engine = registry.capabilities(spec.engine)
    cannot = next((path for path in spec.endpoints if path not in engine.serves), None)
    if cannot is not None:
        message = f"engine {engine.name} cannot answer {cannot}; it can {', '.join(engine.serves)}"
        raise ConfigurationError(f"{where}.endpoints: {message}")
    if spec.max_replicas is not None and not engine.adds_replicas:
        adding = " or ".join(other.name for other in registry.ENGINES.load() if other.adds_replicas)
        raise ConfigurationError(f"{where}.max_replicas: Only engine {adding} adds replicas as it runs; set replicas")
    if engine.simulated and not allow_simulated:
        raise ConfigurationError(
            f"{where}: engine {engine.name} gives simulated answers; set BATCHYARD_ALLOW_SIMULATED=1 to allow it"
        )
    if "max_segments" not in entry and engine.starts_each_run:
        spec = spec.model_copy(update={"max_segments": 1})  # each further segment would start more engines
    if engine.needs_source or (spec.source and not engine.simulated):
        spec = spec.model_copy(update={"source": _source(folder, where, spec.source)})
    able = engine.able(spec)
    if "endpoints" not in entry:
        spec = spec.model_copy(update={"endpoints": heads.usual(spec, able)})
    if unable := [path for path in spec.endpoints if path not in able]:
        message = f"{heads.architecture(spec)} has no answer on {unable[0]}; it can {', '.join(able)}"
        raise ConfigurationError(f"{where}.endpoints: {message}")
    paths = [path for path in spec.endpoints if path in GUARDED]
    if spec.guard and (not paths or any(engine.unsupported(spec, path, REPETITION) for path in paths)):
        where = f"{where}.guard: engine {engine.name}"
        raise ConfigurationError(
            f"{where} cannot end answers that repeat themselves on {spec.endpoints[0]}; leave it out"
        )
    if spec.adapters:
        spec = spec.model_copy(update={"adapters": _adapters(folder, where, spec)})
    try:
        registry.check_arguments(spec)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}{error.message}") from error
    if spec.reproducible and (refusal := engine.reproducible_refusal(spec)) is not None:
        raise ConfigurationError(f"{where}.reproducible: {refusal}")
    return spec


def _adapters(beside: Path, where: str, spec: ModelSpec) -> dict[str, Adapter]:
    """Return a model's adapters with their folders as absolute paths. Raises ConfigurationError."""
    engine = registry.capabilities(spec.engine)
    if not engine.adapters:
        names = " or ".join(other.name for other in registry.ENGINES.load() if other.adapters and not other.simulated)
        raise ConfigurationError(
            f"{where}.adapters: engine {engine.name} cannot load adapters; use engine {names}, or merge each into a "
            "copy of the model, with an entry of its own"
        )
    if engine.simulated:
        return spec.adapters
    found: dict[str, Adapter] = {}
    for name, adapter in spec.adapters.items():
        place = f"{where}.adapters.{name}"
        source = _source(beside, place, adapter.source, adapters.CONFIG, "adapter")
        folder = folder_of(source, adapters.CONFIG)
        if folder is not None:
            try:
                config = adapters.config_of(folder)
            except ValueError as error:
                raise ConfigurationError(f"{place}.source: {error}; copy the adapter again") from error
            if (refusal := engine.adapter_refusal(spec, config)) is not None:
                raise ConfigurationError(f"{place}: {refusal}")
        found[name] = adapter.model_copy(update={"source": source})
    return found


def _source(beside: Path, where: str, source: str, file: str = "config.json", what: str = "model") -> str:
    """Return a local folder, which has to hold `file`, as an absolute path, or a hub id as it is."""
    hub_id = "a hub id such as Qwen/Qwen2.5-0.5B-Instruct" if what == "model" else "a hub id, owner/name"
    if not source:
        raise ConfigurationError(f"{where}.source: missing; name a local folder or {hub_id}")
    folder = (beside / Path(source).expanduser()).resolve()
    if (folder / file).is_file():
        return str(folder)
    if folder.is_dir():
        raise ConfigurationError(f"{where}.source: {folder} holds no {file}, so it is no {what} folder")
    if source.startswith((".", "/", "~")) or not HUB_ID.fullmatch(source):
        raise ConfigurationError(f"{where}.source: no folder {folder}; make it, or name {hub_id}")
    return source
