"""Deaths in vLLM's engine process. A model asks for one by `worker_extension_cls`, which is imported there.

With OnRequest it dies of a request whose `vllm_xargs` have an `end`: by an exception, or by a read of no memory.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any


class Fine:
    """What vLLM adds to its worker."""


def __getattr__(name: str) -> Any:
    if name == "Killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "Greedy":
        import torch

        torch.empty(2**60)
    if name == "OnRequest":
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        execute = GPUModelRunner.execute_model

        def execute_model(self: Any, scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            for request in scheduled.scheduled_new_reqs:
                end = ((request.sampling_params and request.sampling_params.extra_args) or {}).get("end")
                if end == "fault":
                    ctypes.string_at(0)
                if end == "raise":
                    raise RuntimeError("CPU Generator does not use offset")
            return execute(self, scheduled, *args, **kwargs)

        GPUModelRunner.execute_model = execute_model
        return Fine
    raise AttributeError(name)
