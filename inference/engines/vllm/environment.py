"""The environment that vLLM reads in the process it starts in."""

from __future__ import annotations

import math
import os
from pathlib import Path

from batchyard.models import ModelSpec
from inference.engines.vllm import internals

FEW_CPUS = 4
SMALL_BYTES = 16 * 2**20
"""The threads of a smaller model wait for each other more than they work. With 1 M parameters, two threads took 1.4
times as long as one; with 5 M as long; with 15 M and 300 M a third less."""

KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(64 * 2**20)}
"""glibc takes each tensor of a step from the system and gives it back, and the system clears its pages each time. An
engine that keeps them answered 128 chats by 300 M parameters in 49.6 s instead of 54.2."""


def set_environment(spec: ModelSpec) -> None:
    """Set the variables that vLLM reads. Call it before vLLM starts in this process."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")  # a process that a signal ends writes where it was
    os.environ["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] = "0"  # an allowed domain could redirect to another
    if all(Path(source).is_dir() for source in (spec.source, *(each.source for each in spec.adapters.values()))):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Ray sets one thread per CPU of the actor, at least one. vLLM chooses the number itself if it is not set.
    os.environ.pop("OMP_NUM_THREADS", None)
    if internals.current_platform.is_cpu():  # on the GPU tensors come from CUDA's allocator
        for name, value in KEPT_MEMORY.items():
            os.environ.setdefault(name, value)  # of the process that vLLM starts for the model
    if few_cpus():
        os.environ["OMP_NUM_THREADS"] = "1" if weights_bytes(spec.source) < SMALL_BYTES else str(os.cpu_count())


def few_cpus() -> bool:
    """True if vLLM runs on the CPU and this machine has at most FEW_CPUS."""
    return bool(internals.current_platform.is_cpu()) and (os.cpu_count() or 1) <= FEW_CPUS


def weights_bytes(source: str) -> float:
    """Return the size of a model's weights; infinite if they are in no local folder yet."""
    folder = Path(source)
    if not folder.is_dir():
        return math.inf
    return sum(file.stat().st_size for file in folder.glob("*") if file.suffix in (".safetensors", ".bin", ".pt"))
