"""vLLM's schedulers with bounded steps. Without live requests they schedule as vLLM does.

vLLM imports them by name, in the process of its engine.
"""

from typing import Any

from inference.engines.bounded_steps import BoundedSteps
from inference.engines.vllm import internals


class LiveScheduler(BoundedSteps, internals.Scheduler):  # type: ignore[misc]  # vLLM has no types
    """For engines that schedule a step after the one before it."""


class AsyncLiveScheduler(BoundedSteps, internals.AsyncScheduler):  # type: ignore[misc]
    """For engines that schedule a step during the one before it."""


def install(config: Any) -> bool:
    """Set the scheduler in vLLM's configuration where it can bound steps, and return True if it can."""
    scheduler = config.scheduler_config
    ours = {internals.Scheduler: LiveScheduler, internals.AsyncScheduler: AsyncLiveScheduler}
    chosen = ours.get(scheduler.get_scheduler_cls())  # a model or the operator may have another
    if chosen is None or scheduler.policy != "priority" or not scheduler.enable_chunked_prefill:
        return False
    scheduler.scheduler_cls = f"{__name__}.{chosen.__name__}"
    return True
