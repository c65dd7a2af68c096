"""The memory that a model's engines need, from its files, and the memory that is there."""

import importlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from batchyard.models import ModelSpec
from inference.doctor.folder import Finding
from inference.engines import registry
from inference.heads import json_object

GIB = 2**30
WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of the kinds of weights that `dtype` converts."""
DTYPES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
GPU_SHARE = 0.9
"""Share of a GPU's memory that vLLM takes unless gpu_memory_utilization says otherwise."""


@dataclass(frozen=True)
class Machine:
    """The memory of a machine, in bytes: what is available, and what each GPU has."""

    available: int
    gpus: tuple[int, ...] = ()


def this_machine() -> Machine:
    """Return the memory of this machine, or of the container with its limit."""
    available = psutil.virtual_memory().available
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit.isdecimal():
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            cached = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
            used -= int(cached.get("inactive_file", 0))  # the kernel gives it back
            available = min(available, int(limit) - used)
    except (OSError, ValueError):
        pass
    return Machine(max(available, 0), _gpus())


def _gpus() -> tuple[int, ...]:
    if importlib.util.find_spec("pynvml") is None:
        return ()
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return tuple(int(nvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles)
    except nvml.NVMLError:
        return ()


def weights_bytes(folder: Path, dtype: str | None) -> int | None:
    """Return the bytes of the weights as `dtype`, by default as stored; None without any."""
    width, total = DTYPES.get(dtype or ""), 0
    files = sorted(folder.glob("*.safetensors"))
    for file in files:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            tensors: dict[str, Any] = json.loads(stream.read(size))
        tensors.pop("__metadata__", None)
        for tensor in tensors.values():
            start, end = tensor["data_offsets"]
            stored = WIDTHS.get(tensor["dtype"])
            total += (end - start) * width // stored if width and stored else end - start
    if not files:
        total = sum(file.stat().st_size for pattern in ("*.bin", "*.pt") for file in folder.glob(pattern))
    return total or None


def token_bytes(config: Mapping[str, Any], dtype: str | None) -> int | None:
    """Return an ordinary transformer's KV cache bytes per token; None if not configured."""
    config = config.get("text_config") or config
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    if not layers or not heads or not config.get("hidden_size"):
        return None
    size = config.get("head_dim") or config["hidden_size"] // heads
    name = dtype if dtype in DTYPES else config.get("dtype") or config.get("torch_dtype")
    return int(2 * layers * (config.get("num_key_value_heads") or heads) * size * DTYPES.get(str(name), 4))


@dataclass(frozen=True)
class Need:
    """The bytes of one replica: its weights, and its KV cache where that is known."""

    weights: int
    cache: int | None

    @property
    def total(self) -> int:
        return self.weights + (self.cache or 0)


def need(spec: ModelSpec, folder: Path) -> Need | None:
    """Return what one replica needs without a GPU; None if the folder has no weights."""
    dtype = spec.engine_args.get("dtype")
    try:
        weights = weights_bytes(folder, dtype)
    except (OSError, ValueError, LookupError):
        return None
    if weights is None:
        return None
    cache = registry.capabilities(spec.engine).cache_bytes(
        spec, token_bytes(json_object(folder / "config.json"), dtype)
    )
    return Need(weights, cache)


def memory(spec: ModelSpec, folder: Path, machine: Machine) -> Finding:
    """Check that one replica's weights and cache fit into the memory that is there."""
    needed = need(spec, folder)
    if needed is None:
        remedy = "put the model's *.safetensors into the folder, or download the model again"
        return Finding(spec.name, "memory", "failed", f"{folder} has no weights that can be read", remedy)
    engine = registry.capabilities(spec.engine)
    gpus = engine.gpus(spec) if spec.num_gpus is None else spec.num_gpus
    if machine.gpus and gpus:
        share = float(spec.engine_args.get("gpu_memory_utilization", GPU_SHARE))
        whole, number = max(1, round(gpus)), len(machine.gpus)
        room = int(min(machine.gpus) * share) * whole
        detail = f"weights {_size(needed.weights)}; {whole} of {number} GPUs, {_size(room)} of them to be used"
        if whole > number:
            return Finding(spec.name, "memory", "failed", detail, "lower tensor_parallel_size, or use more GPUs")
        if needed.weights >= room:
            remedy = "choose a smaller model or a shorter dtype, or raise tensor_parallel_size"
            return Finding(spec.name, "memory", "warning", detail, remedy)
        return Finding(spec.name, "memory", "ok", detail)
    cache = "" if needed.cache is None else f", KV cache {_size(needed.cache)}"
    detail = f"weights {_size(needed.weights)}{cache}; {_size(machine.available)} available"
    if needed.total > machine.available:
        remedy = "choose a smaller model, a shorter dtype or a smaller KV cache, or free memory"
        return Finding(spec.name, "memory", "warning", detail, remedy)
    return Finding(spec.name, "memory", "ok", detail)


def together(loaded: Sequence[tuple[ModelSpec, Path]], machine: Machine) -> Finding | None:
    """Check that all models fit beside each other without GPUs. None if they do."""
    needs = [(spec, needed) for spec, folder in loaded if (needed := need(spec, folder))]
    total = sum(needed.total * spec.replicas for spec, needed in needs)
    if machine.gpus or len(needs) < 2 or total <= machine.available:
        return None
    detail = f"together {_size(total)}; {_size(machine.available)} available"
    return Finding("(all)", "memory", "warning", detail, "serve fewer models, or give them smaller KV caches")


def _size(number: float) -> str:
    return f"{number / GIB:.1f} GiB" if number >= GIB / 10 else f"{number / 2**20:.1f} MiB"
