"""The memory of an engine: of its actor, of all processes below it, and of its GPUs."""

import contextlib
import importlib
import importlib.util
import logging
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import ray

from batchyard.failures.causes import NO_KILL

NVML = "pynvml"
"""NVIDIA's library (package nvidia-ml-py), which vLLM brings along on machines with GPUs."""

LOOK_SECONDS = 1.0
WATCH_SECONDS = 2.0
"""To look costs half a millisecond of CPU. An engine that the kernel ends grows for longer than that."""
VMSTAT = Path("/proc/vmstat")
GIB = 2**30

log = logging.getLogger(__name__)


class Memory:
    """The memory that was seen. Nothing is seen between two looks.

    Attributes:
        now, most: bytes that the processes held at the last look, and at any; pages that two of them share count twice.
        most_of_gpus: bytes in use on the actor's GPUs, by whatever process; None without a GPU or its library.
        free: bytes that were free on this machine at the last look.
    """

    def __init__(self) -> None:
        self.now: int | None = None
        self.most: int | None = None
        self.most_of_gpus: int | None = None
        self.free: int | None = None
        self._looked_at = 0.0
        self._kills = _kernel_kills()
        self._over = threading.Event()
        self._looking = threading.Lock()
        self._gpus: list[Any] | None = None
        self._next_look = 0.0

    def look(self) -> None:
        """Look, unless somebody has within LOOK_SECONDS."""
        with self._looking:
            if self._over.is_set() or time.monotonic() < self._next_look:
                return
            self._next_look = time.monotonic() + LOOK_SECONDS
            self.now, self.free, self._looked_at = _resident(), psutil.virtual_memory().available, time.monotonic()
            self.most = max(self.most or 0, self.now)
            gpus = self._of_gpus()
            if gpus is not None:
                self.most_of_gpus = max(self.most_of_gpus or 0, gpus)

    def watch(self) -> None:
        """Look every WATCH_SECONDS until `freeze`: what a process had is gone with it."""

        def look() -> None:
            while not self._over.is_set():
                self.look()
                self._over.wait(WATCH_SECONDS)

        threading.Thread(target=look, daemon=True, name="memory").start()

    def freeze(self) -> None:
        """Look no more: the engine is over."""
        self._over.set()

    def phrase(self) -> str:
        """Return what there was at the last look, for a reason; empty before the first one."""
        if self.now is None or self.free is None:
            return ""
        ago, total = max(0, round(time.monotonic() - self._looked_at)), psutil.virtual_memory().total
        phrase = (
            f"{ago} s before, its processes had {self.now / GIB:.1f} GiB, "
            f"and {self.free / GIB:.1f} of {total / GIB:.1f} GiB were free"
        )
        kills = _kernel_kills()
        if kills is None or self._kills is None:
            return phrase
        killed = kills - self._kills
        return f"{phrase}; {f'the kernel ended {killed} for want of memory' if killed else NO_KILL}"

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
    this_process = psutil.Process()
    total = int(this_process.memory_info().rss)
    for process in this_process.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            total += int(process.memory_info().rss)
    return total


def _kernel_kills() -> int | None:
    """Return processes killed by this machine's kernel for memory; None if not counted."""
    try:
        lines = VMSTAT.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def _handles() -> list[Any]:
    """Return NVML's handles of the GPUs that Ray has given this actor."""
    ids = ray.get_gpu_ids() if ray.is_initialized() else []
    if not ids or importlib.util.find_spec(NVML) is None:
        return []
    nvml = importlib.import_module(NVML)
    try:
        nvml.nvmlInit()
        by_index, by_id = nvml.nvmlDeviceGetHandleByIndex, nvml.nvmlDeviceGetHandleByUUID
        return [by_index(int(gpu)) if str(gpu).isdecimal() else by_id(str(gpu)) for gpu in ids]
    except nvml.NVMLError as error:
        log.warning("GPUs not found: %s", error)
        return []
