"""LoRA adapters as PEFT writes them: a folder with `adapter_config.json` and the weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inference.engines.weights import folder_of

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")


def downloaded(source: str) -> Path:
    """Return the folder with an adapter's files. One of the hub that is not in the local cache is downloaded."""
    folder = folder_of(source, CONFIG)
    if folder is not None and has_weights(folder):
        return folder
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(source))


def config_of(folder: Path) -> dict[str, Any]:
    """Return an adapter's configuration. Raises ValueError, with the reason, if it cannot be used."""
    file = folder / CONFIG
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if not isinstance(config, dict) or not all(type(each) is int and each > 0 for each in _ranks(config)):
        raise ValueError(f"{file} has no rank `r` of 1 or more")
    return config


def rank(config: Mapping[str, Any]) -> int:
    return int(max(_ranks(config)))


def _ranks(config: Mapping[str, Any]) -> list[Any]:
    return [config.get("r"), *(config.get("rank_pattern") or {}).values()]


def has_weights(folder: Path) -> bool:
    return any((folder / name).is_file() for name in WEIGHTS)
