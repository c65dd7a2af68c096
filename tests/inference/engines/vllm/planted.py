"""Deaths in vLLM's engine process. A model asks for one by `worker_extension_cls`, which is imported there."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

TOKENS = 100
"""A step of as many tokens fails. The try-out's has fewer."""


class Fine:
    """What vLLM adds to its worker."""


def __getattr__(name: str) -> Any:
    if name == "Killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "Greedy":
        import torch

        torch.empty(2**60)
    if name in ("Raises", "Faults"):
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        execute = GPUModelRunner.execute_model

        def execute_model(self: Any, scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            if scheduled.total_num_scheduled_tokens >= TOKENS and name == "Faults":
                ctypes.string_at(0)
            if scheduled.total_num_scheduled_tokens >= TOKENS:
                raise RuntimeError("CPU Generator does not use offset")
            return execute(self, scheduled, *args, **kwargs)

        GPUModelRunner.execute_model = execute_model
        return Fine
    raise AttributeError(name)
