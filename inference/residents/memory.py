"""The memory of an engine: that of its actor's process and of all processes below it, and of its GPUs."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import threading
import time
from typing import Any

import psutil
import ray

NVML = "pynvml"
"""NVIDIA's library (package nvidia-ml-py), which vLLM brings along on machines with GPUs."""

LOOK_SECONDS = 5.0
"""To look costs some milliseconds of CPU."""

log = logging.getLogger(__name__)


class Memory:
    """The memory that was seen. Nothing is seen between two looks.

    Attributes:
        now, most: bytes that the processes held at the last look, and at any; pages that two of them share count twice.
        most_of_gpus: bytes in use on the actor's GPUs, by whatever process; None without a GPU or its library.
    """

    def __init__(self) -> None:
        self.now: int | None = None
        self.most: int | None = None
        self.most_of_gpus: int | None = None
        self._looking = threading.Lock()
        self._gpus: list[Any] | None = None
        self._next_look = 0.0

    def look(self) -> None:
        """Look, unless another thread does, or has within LOOK_SECONDS."""
        if time.monotonic() < self._next_look or not self._looking.acquire(blocking=False):
            return
        try:
            self._next_look = time.monotonic() + LOOK_SECONDS
            self.now = _resident()
            self.most = max(self.most or 0, self.now)
            gpus = self._of_gpus()
            if gpus is not None:
                self.most_of_gpus = max(self.most_of_gpus or 0, gpus)
        finally:
            self._looking.release()

    def _of_gpus(self) -> int | None:
        if self._gpus is None:
            self._gpus = _handles()
        if not self._gpus:
            return None
        nvml = importlib.import_module(NVML)
        try:
            return sum(int(nvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in self._gpus)
        except nvml.NVMLError as error:
            log.warning("memory of the GPUs not read: %s", error)
            return None


def _resident() -> int:
    """Return the resident bytes of this process and all below it."""
    own = psutil.Process()
    total = int(own.memory_info().rss)
    for process in own.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            total += int(process.memory_info().rss)
    return total


def _handles() -> list[Any]:
    """Return NVML's handles of the GPUs that Ray has given this actor."""
    ids = ray.get_gpu_ids() if ray.is_initialized() else []
    if not ids or importlib.util.find_spec(NVML) is None:
        return []
    nvml = importlib.import_module(NVML)
    try:
        nvml.nvmlInit()
        return [
            nvml.nvmlDeviceGetHandleByIndex(int(gpu))
            if str(gpu).isdecimal()
            else nvml.nvmlDeviceGetHandleByUUID(str(gpu))
            for gpu in ids
        ]
    except nvml.NVMLError as error:
        log.warning("GPUs not found: %s", error)
        return []
