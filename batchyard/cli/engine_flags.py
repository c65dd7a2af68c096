"""The flags of `vllm run-batch` beside files: engine arguments for a model that `run` starts, and refused ones."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from batchyard.cli.options import add_options
from batchyard.errors import ConfigurationError

# Names as vLLM writes them; in `engine_args` they have underscores.
ENGINE_FLAGS: Mapping[str, Any] = {
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
REFUSED_FLAGS: Mapping[str, str] = {
    "--output-tmp-dir": "answers are kept in the data folder until they are written",
    "--enable-metrics": _METRICS,
    "--host": _METRICS,
    "--port": _METRICS,
    "--url": _METRICS,
}
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def _refuse(_: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        (flag,) = option.opts
        raise click.UsageError(f"{flag} of `vllm run-batch` is not taken: {REFUSED_FLAGS[flag]}; leave it out")


_HIDDEN: Mapping[str, Any] = {"is_flag": False, "flag_value": "", "hidden": True, "expose_value": False}
options = add_options(
    *(click.option(flag, is_eager=True, callback=_refuse, **_HIDDEN) for flag in REFUSED_FLAGS),
    *(
        click.option(
            flag,
            help="As in vLLM, if --model is started.",
            **({"is_flag": True, "default": None} if kind is bool else {"type": kind}),
        )
        for flag, kind in ENGINE_FLAGS.items()
    ),
)
"""The flags, as options of a command. The engine arguments arrive as its keyword arguments; None if not set."""


def arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Take the engine arguments out of a command's options, and return those that are set."""
    taken = {name: options.pop(name) for name in (flag[2:].replace("-", "_") for flag in ENGINE_FLAGS)}
    return {name: value for name, value in taken.items() if value is not None}


def written(engine_args: Mapping[str, Any]) -> str:
    """Engine arguments as flags: `--max-model-len, --dtype`."""
    return ", ".join("--" + name.replace("_", "-") for name in engine_args)


def models_file(folder: Path, model: str, engine_args: Mapping[str, Any]) -> Path:
    """Write a models file with one model, a folder or a hub id."""
    from batchyard import models  # pydantic takes longer than a command's help

    path = Path(model).expanduser()
    if not path.is_dir() and (path.exists() or not _HUB_ID.fullmatch(model)):
        raise ConfigurationError(
            f"--model {model}: neither a model of the models file, nor a folder, nor a hub id such as "
            "Qwen/Qwen2.5-0.5B-Instruct"
        )
    source = str(path.resolve()) if path.is_dir() else model
    file = folder / "models.toml"
    file.write_text(models.written(model, {"engine": "auto", "source": source, "engine_args": engine_args}))
    return file
