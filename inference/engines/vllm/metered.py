"""vLLM's engine client with a meter: tokens of each request as they come, and batches behind live requests."""

import logging
import os
from collections.abc import AsyncGenerator
from typing import Any

from inference.engines.bounded_steps import BATCH, LIVE, STEP_SECONDS
from inference.engines.vllm import internals
from inference.engines.vllm.scheduler import install
from inference.progress import PROGRESS, RequestProgress

log = logging.getLogger(__name__)


class MeteredLLM(internals.AsyncLLM):  # type: ignore[misc]  # vLLM has no types
    """An AsyncLLM that writes the progress of the request of the task that calls it (`inference.progress`)."""

    def __init__(self, vllm_config: Any, *args: Any, **options: Any) -> None:
        wanted = STEP_SECONDS in os.environ
        self.bounds_steps = wanted and internals.untested() is None and install(vllm_config)
        if wanted and not self.bounds_steps:
            log.info("live.bound_steps has no effect: this configuration or version of vLLM keeps its own scheduler")
        super().__init__(vllm_config, *args, **options)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        progress = PROGRESS.get()
        options["priority"] = self._priority(progress)
        outputs = super().generate(prompt, sampling_params, request_id, **options)
        if progress is None:
            async for output in outputs:
                yield output
            return
        progress.request_ids.append(request_id)
        begins, whole = True, sampling_params.output_kind == internals.RequestOutputKind.FINAL_ONLY
        async for output in outputs:
            if begins:
                progress.input_tokens += len(output.prompt_token_ids or ())
                progress.cached_tokens += output.num_cached_tokens or 0
                begins = False
            tokens = sum(len(choice.token_ids) for choice in output.outputs)
            if whole:
                progress.output_tokens += tokens
            else:
                progress.add(tokens)
            yield output

    async def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        options["priority"] = self._priority(PROGRESS.get())
        async for output in super().encode(prompt, pooling_params, request_id, **options):
            yield output

    def measure(self, progress: RequestProgress) -> None:
        """Bring the progress of a request that still runs, and has given nothing yet, up to date."""
        processor = self.output_processor
        for request_id in progress.request_ids:
            for name in processor.external_req_ids.get(request_id, ()):
                state = processor.request_states.get(name)
                if state is not None and not state.is_prefilling:
                    progress.input_tokens += state.prompt_len
                    progress.cached_tokens += state.num_cached_tokens
                    if state.detokenizer is not None:
                        progress.output_tokens += state.detokenizer.num_output_tokens()

    def has_begun(self, progress: RequestProgress) -> bool:
        """Return True if a request that runs has its first token."""
        processor = self.output_processor
        names = [name for each in progress.request_ids for name in processor.external_req_ids.get(each, ())]
        if not names:  # not handed over yet, or ended
            return progress.output_tokens > 0
        states = (processor.request_states.get(name) for name in names)
        return not any(state is not None and state.is_prefilling for state in states)

    def _priority(self, progress: RequestProgress | None) -> int:
        by_priority = self.vllm_config.scheduler_config.policy == "priority"
        return BATCH if by_priority and (progress is None or not progress.live) else LIVE
