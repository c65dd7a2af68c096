"""vLLM's CPU worker, mended for seeds and bfloat16. vLLM imports it by name."""

from typing import Any

import torch

from inference.engines.vllm import internals


class CPUWorker(internals.CPUWorker):  # type: ignore[misc]  # vLLM has no types
    """A worker whose seeded requests draw only for the tokens that they keep.

    A prompt that enters in parts is sampled after each part, and vLLM discards all samples but the last. It then sets
    the request's generator back by an offset, which only generators of GPUs have: on the CPU the engine dies
    (`GPUModelRunner._bookkeeping_sync` of vLLM 0.32). Here such a request has no generator while its sample is
    discarded, so there is nothing to set back, at its start and after a preemption alike.

    Linux lets a process use the tiles of AMX only after it has asked for them, and ends it with SIGILL otherwise.
    vLLM's attention in bfloat16 uses them without asking. oneDNN asks at the first product of some rows, so a prompt of
    three tokens or fewer would end an engine that has not seen a longer one.
    """

    def init_device(self) -> None:
        torch.cpu._init_amx()  # False where the CPU has none
        super().init_device()
        runner = self.model_runner
        if hasattr(runner, "discard_request_mask"):  # vLLM's second runner draws by seed and position
            sample_tokens = runner.sample_tokens

            def sample_kept_tokens(grammar_output: Any) -> Any:
                generators = runner.input_batch.generators
                discarded = runner.discard_request_mask.np
                aside = {row: generators.pop(row) for row in list(generators) if discarded[row]}
                try:
                    return sample_tokens(grammar_output)
                finally:
                    generators.update(aside)

            runner.sample_tokens = sample_kept_tokens
