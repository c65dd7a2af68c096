"""The flags of `vllm run-batch` beside files: those that `run` takes for a model it starts, and those it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from batchyard.errors import ConfigurationError

# Names as vLLM writes them; in `engine_args` they have underscores.
TAKEN: Mapping[str, Any] = {
    "--max-model-len": click.IntRange(1),
    "--dtype": str,
    "--tensor-parallel-size": click.IntRange(1),
    "--gpu-memory-utilization": click.FloatRange(0, 1, min_open=True),
    "--max-num-seqs": click.IntRange(1),
    "--quantization": str,
    "--trust-remote-code": bool,
    "--enforce-eager": bool,
}
_METRICS = "a server has its metrics at /metrics always"
NOT_TAKEN: Mapping[str, str] = {
    "--output-tmp-dir": "answers are kept in the data folder until they are written",
    "--enable-metrics": _METRICS,
    "--host": _METRICS,
    "--port": _METRICS,
    "--url": _METRICS,
}
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the flags to a command; what is given arrives as its keyword arguments."""
    for name, kind in reversed(list(TAKEN.items())):
        flag = {"is_flag": True, "default": None} if kind is bool else {"type": kind}
        command = click.option(name, help="As in vLLM, for a --model that is started.", **flag)(command)
    hidden: dict[str, Any] = {"is_flag": False, "flag_value": "", "hidden": True, "expose_value": False}
    for name, why in NOT_TAKEN.items():
        command = click.option(name, is_eager=True, callback=_refuser(name, why), **hidden)(command)
    return command


def written(given: Mapping[str, Any]) -> str:
    """Engine arguments as they were written: `--max-model-len, --dtype`."""
    return ", ".join("--" + name.replace("_", "-") for name in given)


def models_file(folder: Path, model: str, engine_args: Mapping[str, Any]) -> Path:
    """A models file with the one model that a folder or hub id names, which is its name, too.

    Raises:
        ConfigurationError: it is neither.
    """
    given = Path(model).expanduser()
    if not given.is_dir() and (given.exists() or not _HUB_ID.fullmatch(model)):
        raise ConfigurationError(
            f"--model {model}: neither a model of the models file, nor a folder, nor a hub id such as "
            "Qwen/Qwen2.5-0.5B-Instruct"
        )
    source = str(given.resolve()) if given.is_dir() else model
    # JSON's texts, numbers and booleans are TOML's.
    name = json.dumps(model, ensure_ascii=False)
    file = folder / "models.toml"
    file.write_text(
        f'[models.{name}]\nengine = "auto"\nsource = {json.dumps(source, ensure_ascii=False)}\n'
        f"[models.{name}.engine_args]\n"
        + "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in engine_args.items())
    )
    return file


def _refuser(name: str, why: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    def refuse(_: click.Context, __: click.Parameter, given: str | None) -> None:
        if given is not None:
            raise click.UsageError(f"{name} of `vllm run-batch` is not taken: {why}; leave it out")

    return refuse
