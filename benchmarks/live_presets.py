"""Scenarios of live requests beside batches, and simulated engines with the costs of published measurements.

A simulated engine has no KV cache, no network and no kernels: its steps take `ms_per_token`, `ms_per_request` for each
answer in them, and the time of their parts of prompts. `slots` stand for what fits into the memory of the real one.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scenario:
    """How much comes, and how long it is.

    Attributes:
        rates: live requests a second, in turn.
        phase_seconds: of each rate.
        live_tokens, batch_tokens: of an answer: mean, and at most this much more or less.
        batch_deviation: if not 0, lengths of batch answers are lognormal with this deviation instead, at most 2,048.
    """

    rates: tuple[float, ...]
    phase_seconds: float
    prompt_words: int
    live_tokens: tuple[int, int]
    batch_tokens: tuple[int, int]
    batch_rows: int
    batch_deviation: int = 0

    @property
    def seconds(self) -> float:
        return self.phase_seconds * len(self.rates)

    def live_length(self, chance: random.Random) -> int:
        """Return the tokens of a live answer."""
        mean, most = self.live_tokens
        return chance.randint(mean - most, mean + most)

    def batch_length(self, chance: random.Random) -> int:
        """Return the tokens of a batch answer."""
        mean, most = self.batch_tokens
        if not self.batch_deviation:
            return chance.randint(mean - most, mean + most)
        variance = math.log1p((self.batch_deviation / mean) ** 2)
        length = chance.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
        return min(2048, max(1, round(length)))


@dataclass(frozen=True)
class Preset:
    """A simulated engine and its load.

    Attributes:
        about: what is simulated, from which source.
        arguments: `engine_args` of engine echo.
        live: the model's targets.
        rates: live requests a second and replica: in a burst, and between bursts.
        live_tokens, batch_tokens, batch_deviation: of the answers, as in Scenario.
        published: TTFT and ITL that others have measured in this scenario.
    """

    about: str
    arguments: dict[str, float]
    live: dict[str, float]
    rates: tuple[float, float]
    prompt_words: int = 512
    live_tokens: tuple[int, int] = (128, 0)
    batch_tokens: tuple[int, int] = (500, 0)
    batch_deviation: int = 400
    batch_rows: int = 1000
    published: str = ""

    def note(self) -> str:
        """Return what a reader of its figures has to know."""
        published = f" Published: {self.published}" if self.published else ""
        return f"Simulated: no model computed these tokens. {self.about}{published}"

    def scenario(self, seconds: float, replicas: int) -> Scenario:
        """Return the load of so many replicas: two bursts, with a pause after each."""
        return Scenario(
            rates=tuple(rate * replicas for rate in self.rates) * 2,
            phase_seconds=seconds / 4,
            prompt_words=self.prompt_words,
            live_tokens=self.live_tokens,
            batch_tokens=self.batch_tokens,
            batch_rows=self.batch_rows * replicas,
            batch_deviation=self.batch_deviation,
        )


def toml(table: dict[str, Any]) -> str:
    """Return a table in one line of TOML."""
    return "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items()) + "}"


PRESETS = {
    "simulated": Preset(
        "50 ms for each prompt whatever else runs, 20 ms a token. No published figure: values chosen.",
        {"slots": 64, "prefill_ms": 50, "ms_per_token": 20},
        {},
        (15, 1),
        prompt_words=400,
        live_tokens=(100, 60),
        batch_tokens=(100, 60),
        batch_deviation=0,
    ),
    # inference-sim (BLIS), https://github.com/inference-sim/inference-sim, defaults.yaml at 1a6eb353: `beta_coeffs` of
    # meta-llama/llama-3.1-8b-instruct, H100, tensor_parallelism 1, vLLM 0.8.4, fitted to measured latencies: a step
    # takes 5,753 us, 17.25 us for each token of a prompt and 6.0 us for each answer. 17.25 us is close to the GPU's
    # dense bfloat16 peak (16 GFLOP a token at 989 TFLOPS), so that prompts of the real one are hardly faster. Its
    # KV cache has 29,205 blocks of 16 tokens there: room for 256 requests. Targets and rates (bursts of 20 times) are
    # chosen.
    "h100-8b": Preset(
        "Llama 3.1 8B on one H100: step costs that inference-sim (BLIS) has fitted to vLLM 0.8.4.",
        {"slots": 256, "ms_per_token": 5.753, "ms_per_request": 0.006, "prefill_tokens_per_second": 57970},
        {"ttft_ms": 200, "itl_ms": 10},
        (15, 0.75),
    ),
    # Vidur (Agrawal et al., MLSys 2024, arXiv 2405.05465), https://github.com/microsoft/vidur at 7d475133:
    # data/profiling/compute/a100/meta-llama/Meta-Llama-3-70B/mlp.csv (4 tensor-parallel workers, medians of all
    # operators of a layer, times 80 layers) and data/profiling/network/a100_dgx/all_reduce.csv (4 devices of one node,
    # two a layer). Sum for 8, 64, 512, 1,024 and 2,048 tokens: 35, 37, 110, 219 and 389 ms. The line 33 ms + 0.178 ms
    # a token of a prompt gives 34, 44, 124, 215 and 398; answers cost 0.06 ms each, which gives 37 ms for 64. Attention
    # is left out: its profile is not in that copy. Slots, targets and rates (bursts of 20 times) are chosen.
    "a100x4-70b": Preset(
        "Llama 3 70B on four A100, tensor parallel: step costs from the operators that Vidur has profiled.",
        {"slots": 256, "ms_per_token": 33, "ms_per_request": 0.06, "prefill_tokens_per_second": 5618},
        {"ttft_ms": 1000, "itl_ms": 70},
        (4, 0.2),
        batch_rows=300,
    ),
    # https://github.com/llm-d/llm-d-batch-gateway/issues/491, gpt-oss-120b on one A100 a replica: prompts of 512
    # tokens, live answers of 128, batch answers lognormal with mean 500 and deviation 400, three batches of 1,000, 15
    # requests a second in bursts of 90 s (--seconds 360) and 1 between them. Costs are fitted to its runs without
    # batches, in simulated time. At 7.5, 12.5 and 15 requests a second and replica it has TTFT p50 / p95 of 37 / 76,
    # 63 / 125 and 71 / 131 ms and ITL p50 of 12, 17.7 and 19.6 ms; these costs give 42 / 74, 49 / 99 and 60 / 115 ms,
    # and 12.6, 17.5 and 21.5 ms. Its max_num_seqs of 1,024 exceeds the memory; slots and targets are chosen.
    "llm-d": Preset(
        "gpt-oss-120b on one A100 and the load of llm-d-batch-gateway #491: step costs fitted to its runs without "
        "batches.",
        {"slots": 256, "ms_per_token": 9, "ms_per_request": 0.18, "prefill_tokens_per_second": 20000},
        {"ttft_ms": 200, "itl_ms": 30},
        (15, 1),
        published="TTFT p99 169 ms live alone, 6.0 s with every protection; in another run 90 ms, 2,617 without "
        "protection and 1,273 with it; with two replicas 82, 116, and 488 to 1,832.",
    ),
}
