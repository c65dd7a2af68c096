"""models.toml: which models a deployment serves, and the engine that runs each."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, ValidationInfo, field_validator

from batchyard.errors import ConfigurationError
from batchyard.wording import nearest

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
CAPACITY = 128
"""Requests that an engine is taken to run at once where it does not say."""
Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]


class ModelSpec(BaseModel):
    """One entry of models.toml. `engine_args` go to the engine as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    engine: Literal["vllm", "vllm-job", "openai", "transformers", "echo"]
    source: str = ""
    endpoints: tuple[Endpoint, ...] = ("/v1/chat/completions", "/v1/completions")
    replicas: PositiveInt = 1
    max_replicas: PositiveInt | None = Field(None, description="engine vllm-job: as many as there is room and work for")
    max_segments: PositiveInt = Field(
        # Two overlap so that a resident engine never drains; of vllm-job they would be two sets of engines.
        default_factory=lambda given: 1 if given.get("engine") == "vllm-job" else 2
    )
    max_in_flight: PositiveInt | None = Field(None, description="requests given to one replica at once; see in_flight")
    num_gpus: float | None = Field(None, ge=0, description="GPUs of one replica; unset: as many as the engine needs")
    engine_args: dict[str, Any] = Field(default_factory=dict)

    @field_validator("max_replicas")
    @classmethod
    def _range(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("engine") != "vllm-job":
            raise ValueError("Only engine vllm-job adds replicas as it runs; set replicas")
        if value is not None and value < info.data.get("replicas", 1):
            raise ValueError("Input should be at least replicas")
        return value

    def in_flight(self, capacity: int = CAPACITY) -> int:
        """Requests given at once to a replica that runs `capacity` at once: twice that, so that it never waits."""
        return self.max_in_flight or 2 * capacity

    @property
    def simulated(self) -> bool:
        return self.engine == "echo"

    @property
    def config_sha256(self) -> str:
        """SHA-256 of everything that can change an answer or how it is run, as canonical JSON."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def vllm_installed() -> bool:
    return importlib.util.find_spec("vllm") is not None


def load(path: Path, *, allow_simulated: bool = False) -> dict[str, ModelSpec]:
    """The models of a models.toml, by name. `engine = "auto"` becomes vllm where it is installed, else transformers.

    Raises:
        ConfigurationError: the file, a key or a value cannot be used; names the file, the key and what would be right.
    """
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{path}: no such file; name the models file with --models or BATCHYARD_MODELS"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from error
    stray = [key for key in document if key != "models"]
    if stray:
        raise ConfigurationError(f"{path}: unknown key {stray[0]!r}; models are tables named [models.<name>]")
    entries = document.get("models")
    if not isinstance(entries, dict) or not entries:
        raise ConfigurationError(f"{path}: no models; add a table [models.<name>] with engine and source")
    return {name: _spec(path, name, entry, allow_simulated) for name, entry in entries.items()}


def _spec(path: Path, name: str, entry: Any, allow_simulated: bool) -> ModelSpec:
    where = f"{path}: models.{name}"
    if not isinstance(entry, dict):
        raise ConfigurationError(f"{where}: must be a table with engine and source")
    for key in entry:
        if key == "name" or key not in ModelSpec.model_fields:
            known = [field for field in ModelSpec.model_fields if field != "name"]
            raise ConfigurationError(f"{where}.{key}: unknown key; did you mean {nearest(key, known)}?")
    if entry.get("engine") == "auto":
        entry = {**entry, "engine": "vllm" if vllm_installed() else "transformers"}
    try:
        spec = ModelSpec(name=name, **entry)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{where}.{key}: {first['msg']}") from error
    if spec.simulated:
        if not allow_simulated:
            raise ConfigurationError(
                f"{where}: engine echo gives simulated answers; set BATCHYARD_ALLOW_SIMULATED=1 to allow it"
            )
        return spec
    if spec.engine == "openai" and not spec.source:
        return spec  # its endpoints have the model; a folder only says how long its context is
    return spec.model_copy(update={"source": _source(path, where, spec.source)})


def _source(path: Path, where: str, source: str) -> str:
    """A local folder as an absolute path, or a hub id as it is."""
    if not source:
        raise ConfigurationError(
            f"{where}.source: missing; name a local folder or a hub id such as Qwen/Qwen2.5-0.5B-Instruct"
        )
    folder = (path.parent / Path(source).expanduser()).resolve()
    if (folder / "config.json").is_file():
        return str(folder)
    if folder.is_dir():
        raise ConfigurationError(f"{where}.source: {folder} holds no config.json, so it is no model folder")
    if source.startswith((".", "/", "~")) or not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        raise ConfigurationError(
            f"{where}.source: no folder {folder}; make it, or name a hub id such as Qwen/Qwen2.5-0.5B-Instruct"
        )
    return source
