"""The tokenizer of a served model: its folder or hub id as the caller or the local models file names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from batchyard import models, settings
from batchyard.errors import ConfigurationError

_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx")
"""Keys of a model's configuration that say how many tokens it reads."""


class LoadedTokenizer(NamedTuple):
    """A tokenizer of transformers. `longest`: prompt and answer together, in tokens; None if nothing says."""

    tokenizer: Any
    longest: int | None


def load(model: str, source: str | None, **options: Any) -> LoadedTokenizer:
    """Load the tokenizer of the model that a server calls `model`.

    Args:
        source: its folder or hub id; None: as the local models file says, if it names the model.
        options: `revision` and `trust_remote_code`, as transformers has them.

    Raises ConfigurationError: nothing names the source, or it cannot be loaded.
    """
    from transformers import AutoTokenizer

    file = settings.load().models
    entries = models.read(file) if file.exists() else {}
    adapted = (entry for entry in entries.values() if model in entry.get("adapters", {}))
    entry = entries.get(model) or next(adapted, {})
    folder = source or entry.get("source")
    if not folder:
        raise ConfigurationError(
            f"tokenizer: the models file here does not name {model}; add tokenizer=, the model's folder or hub id"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"tokenizer {folder} cannot be loaded: {reason}") from error
    served = entry.get("engine_args", {}).get("max_model_len")
    return LoadedTokenizer(tokenizer, served or _longest(folder, options))


def _longest(folder: str, options: Mapping[str, Any]) -> int | None:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, **options)
    except (OSError, ValueError):
        return None  # a folder may hold a tokenizer alone
    text = getattr(config, "text_config", None) or config
    return next((length for key in _LENGTHS if (length := getattr(text, key, None))), None)
