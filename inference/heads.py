"""What a model can do, by the architecture that its `config.json` names."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from batchyard.endpoints import catalog
from batchyard.endpoints.catalog import AUDIO, ENDPOINTS
from batchyard.models import ModelSpec

Head = Literal["generate", "transcribe", "classify", "score", "embed"]
"""It generates text, writes down what is heard in audio, gives a text one of several labels or a score, or has no head:
then it makes vectors."""

_SUFFIXES: Mapping[str, Head] = {
    "ForSequenceClassification": "classify",
    "ForCausalLM": "generate",
    "LMHeadModel": "generate",
    "WhisperForConditionalGeneration": "transcribe",
    "BertModel": "embed",
    "RobertaModel": "embed",
    "MPNetModel": "embed",
}
"""Suffixes that mean the same to every engine. vLLM generates with some architectures that end in `Model`."""
_OVERRIDES = frozenset({"convert", "hf_overrides", "runner", "hf_config_path"})
"""Keys of `engine_args` with which the folder no longer tells what the engine makes of the model."""
NEED_TEXT = (
    *(path for path, entry in ENDPOINTS.items() if entry.generates),
    *(catalog.SYSTEMONE.path, catalog.GENERATIVE_SCORING.path, catalog.COUNT_TOKENS.path),
)
"""The endpoints that need a head for text."""
_TEXT = (*NEED_TEXT, catalog.TOKENIZE.path, catalog.DETOKENIZE.path)
"""Those, and what every model for text has beside them."""
_OF_A_WHISPER = (*catalog.AUDIO, catalog.TOKENIZE.path, catalog.DETOKENIZE.path)
CANNOT: Mapping[Head, Collection[str]] = {
    "generate": (catalog.CLASSIFY.path,),
    "transcribe": tuple(path for path in ENDPOINTS if path not in _OF_A_WHISPER),
    "classify": (*NEED_TEXT, catalog.EMBEDDINGS.path, catalog.SCORE.path, catalog.RERANK.path),
    "score": (*NEED_TEXT, catalog.EMBEDDINGS.path),
    "embed": (*NEED_TEXT, catalog.CLASSIFY.path),
}
"""The endpoints that a model with this head has no answer on, in any engine."""


def head(config: Mapping[str, Any]) -> Head | None:
    """Return what a model's `config.json` says that it does; None if that does not tell."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str):
        return None
    kind = next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), None)
    return "score" if kind == "classify" and label_count(config) == 1 else kind


def label_count(config: Mapping[str, Any]) -> int:
    """Return the number of labels of a classifier; transformers writes them only if they are not two."""
    labels = config.get("id2label")
    return len(labels) if isinstance(labels, Mapping) else int(config.get("num_labels", 2))


def architecture(spec: ModelSpec) -> str | None:
    """Return the architecture that the model's folder names; None if that is not here or does not say."""
    names = _config(spec).get("architectures")
    return str(names[0]) if isinstance(names, list) and names else None


def served(spec: ModelSpec, serves: Collection[str]) -> list[str]:
    """Return the endpoints of an engine that the model can answer on; all of them if its folder does not tell."""
    kind = None if _OVERRIDES & spec.engine_args.keys() else head(_config(spec))
    return [path for path in serves if kind is None or path not in CANNOT[kind]]


def usual(spec: ModelSpec, able: Collection[str]) -> tuple[str, ...]:
    """Return the endpoints that a model serves by default. One that generates makes no vectors."""
    kind = None if _OVERRIDES & spec.engine_args.keys() else head(_config(spec))
    return tuple(path for path in able if kind not in (None, "generate") or (path in _TEXT and path not in AUDIO))


def _config(spec: ModelSpec) -> Mapping[str, Any]:
    return json_object(Path(spec.source) / "config.json") if spec.source else {}


def json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is none that can be read."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
