"""A general plugin of vLLM, which loads it in each of its processes. It changes nothing but engines of ours."""

from __future__ import annotations

import os

from inference.guard import MARK

SPIN_SECONDS = 0.05


def register() -> None:
    """On CPU, let vLLM's processes sleep once they have waited SPIN_SECONDS for each other, where vLLM says a second.

    A process that waits keeps a CPU busy, to be quick; between two segments that is one that the others need. Twenty
    batches of 50 requests sent together took 11 s instead of 16, and one batch of their rows as long as before (2 CPUs,
    a model of 1 M parameters).
    """
    if MARK not in os.environ:
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    SpinCondition.__init__.__defaults__ = (SPIN_SECONDS,)  # of busy_loop_s
