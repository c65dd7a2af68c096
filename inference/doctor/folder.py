"""Checks of a model's folder: tokenizer and chat template. They read files, and import no engine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from batchyard.endpoints.catalog import CHAT
from batchyard.models import ModelSpec
from inference.engines import adapters
from inference.engines.weights import folder_of
from inference.heads import json_object

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "spiece.model")
TEMPLATES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True)
class Finding:
    """The result of one check of a model. `remedy` is empty where nothing is to be done.

    `no`: a server that others run cannot do it; `remedy` says what follows.
    """

    model: str
    check: str
    result: Literal["ok", "no", "warning", "failed", "not checked"]
    detail: str = ""
    remedy: str = ""

    @property
    def wrong(self) -> bool:
        return self.result in ("warning", "failed")


def tokenizer(spec: ModelSpec, folder: Path) -> Finding:
    """Check that the folder has a tokenizer that can be read."""
    if "tokenizer" in spec.engine_args or spec.engine_args.get("skip_tokenizer_init"):
        return Finding(spec.name, "tokenizer", "not checked", "engine_args say where it is")
    name = next((name for name in TOKENIZERS if (folder / name).is_file()), None)
    if name is None:
        remedy = "put the model's tokenizer.json into the folder, or name another one in engine_args.tokenizer"
        return Finding(spec.name, "tokenizer", "failed", f"{folder} has no tokenizer", remedy)
    if name == "tokenizer.json":
        try:
            from tokenizers import Tokenizer

            Tokenizer.from_file(str(folder / name))
        except ImportError:
            pass
        except Exception as error:  # noqa: BLE001  tokenizers raises Exception itself
            detail = f"{folder / name} cannot be read: {error}"
            return Finding(spec.name, "tokenizer", "failed", detail, "copy the model's tokenizer.json again")
    return Finding(spec.name, "tokenizer", "ok", name)


def chat_template(spec: ModelSpec, folder: Path) -> Finding | None:
    """Check that a model that answers chats has a chat template. None for another one."""
    if CHAT.path not in spec.endpoints:
        return None
    if "chat_template" in spec.engine_args:
        return Finding(spec.name, "chat template", "ok", "engine_args.chat_template")
    name = next((name for name in TEMPLATES if (folder / name).is_file()), None)
    if name is None and json_object(folder / "tokenizer_config.json").get("chat_template"):
        name = "tokenizer_config.json"
    if name is None:
        detail = f"none in {folder}: requests to {CHAT.path} will fail"
        remedy = "put the model's chat_template.jinja into the folder, or list its other endpoints in `endpoints`"
        return Finding(spec.name, "chat template", "warning", detail, remedy)
    return Finding(spec.name, "chat template", "ok", name)


def adapter(spec: ModelSpec, name: str) -> Finding:
    """Check that an adapter's weights are on this machine. The rest was checked when models.toml was read."""
    source, check = spec.adapters[name].source, f"adapter {name}"
    files = folder_of(source, adapters.CONFIG)
    if files is None:
        detail = f"{source} is not on this machine: the start downloads it"
        return Finding(spec.name, check, "warning", detail, f"download it before: hf download {source}")
    if not adapters.has_weights(files):
        detail = f"{files} has none of {', '.join(adapters.WEIGHTS)}"
        return Finding(spec.name, check, "failed", detail, "copy the adapter again")
    return Finding(spec.name, check, "ok", f"rank {adapters.rank(adapters.config_of(files))}, {files}")
