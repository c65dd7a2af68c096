"""Steps beside live requests end within their target. vLLM's own scheduler decides, with a clock of the test's."""

from __future__ import annotations

import random
from typing import Any

import pytest

from batchyard.models import vllm_installed
from inference.engines.bounded_steps import BATCH, LIVE, STEP_SECONDS, BoundedSteps
from inference.engines.vllm import internals
from tests.support.stacks import ROOT

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed")]
NANO = str(ROOT / "examples/models/nano")
TARGET = 0.15
STEP, REQUEST, TOKEN = 0.06, 0.005, 0.004
"""What a step takes, each of its requests, and each further token of a prompt."""


def config(blocks: int = 1000, **options: Any) -> Any:
    arguments: dict[str, Any] = {"max_model_len": 1024, "max_num_seqs": 16, "max_num_batched_tokens": 128}
    arguments |= {"scheduling_policy": "priority", "skip_tokenizer_init": True, "block_size": 32, "enforce_eager": True}
    arguments["enable_prefix_caching"] = False
    made = internals.AsyncEngineArgs(model=NANO, **{**arguments, **options}).create_engine_config()
    made.cache_config.num_gpu_blocks = blocks
    return made


class Steps:
    """A scheduler, and a model whose steps take the time that this test says."""

    def __init__(self, scheduler: type[Any], monkeypatch: pytest.MonkeyPatch, blocks: int = 1000) -> None:
        import torch
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        self.now = 0.0
        monkeypatch.setenv(STEP_SECONDS, str(TARGET))
        monkeypatch.setattr(BoundedSteps, "clock", lambda _: self.now)
        settings = config(blocks)
        spec = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.float16)
        cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["one"], spec)])
        self.scheduler = scheduler(
            vllm_config=settings,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(settings),
            block_size=32,
        )
        self.left: dict[str, int] = {}

    def add(self, name: str, prompt: int, tokens: int, priority: int = BATCH) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        options = SamplingParams(max_tokens=tokens, ignore_eos=True)
        self.scheduler.add_request(Request(name, [5] * prompt, options, None, priority=priority))
        self.left[name] = tokens

    def step(self) -> tuple[float, dict[str, int]]:
        """Run a step. Return its seconds, and the tokens of each request in it."""
        from vllm.v1.outputs import ModelRunnerOutput

        output = self.scheduler.schedule()
        tokens = dict(output.num_scheduled_tokens)
        seconds = STEP + REQUEST * len(tokens) + TOKEN * (sum(tokens.values()) - len(tokens)) if tokens else 0.0
        self.now += seconds
        answered = [name for name in tokens if not self.scheduler.requests[name].is_prefill_chunk]
        sampled = [[7] if name in answered else [] for name in tokens]
        places = {name: place for place, name in enumerate(tokens)}
        self.scheduler.update_from_output(output, ModelRunnerOutput(list(tokens), places, sampled))
        for name in answered:
            self.left[name] -= 1
        return seconds, tokens

    def fill(self, number: int = 40) -> None:
        """Add requests of batches, and run some steps."""
        chance = random.Random(1)
        for count in range(number):
            self.add(f"batch {count}", chance.randint(20, 60), chance.randint(12, 36))
        for _ in range(40):
            self.step()


@pytest.fixture(params=["LiveScheduler", "AsyncLiveScheduler"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Steps:
    from inference.engines.vllm import scheduler

    return Steps(getattr(scheduler, request.param), monkeypatch)


def test_without_live_requests_each_step_is_that_of_vllm(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Steps(type(steps.scheduler).__mro__[2], monkeypatch)
    for one in (steps, theirs):
        for number in range(40):
            one.add(f"batch {number}", 20 + number, 12)
    assert [steps.step()[1] for _ in range(60)] == [theirs.step()[1] for _ in range(60)]


def test_steps_beside_a_live_request_end_within_the_target(steps: Steps) -> None:
    steps.fill(80)
    assert max(steps.step()[0] for _ in range(20)) > 1.3 * TARGET, "batches alone fill each step"
    steps.add("live", 20, 40, LIVE)
    _, tokens = steps.step()
    assert tokens["live"] == 20, "the whole prompt is in the next step"
    shares = [steps.step() for _ in range(39)]
    late = [seconds for seconds, _ in shares if seconds > 1.05 * TARGET]
    assert len(late) <= 2, "while it learns"
    assert steps.left["live"] == 0, "each step had a token of it"
    assert sum(seconds for seconds, _ in shares) > 0.85 * TARGET * len(shares), "batches have the rest"
    assert max(steps.step()[0] for _ in range(20)) > 1.3 * TARGET, "afterwards they fill each step again"


def test_batches_have_a_part_of_each_step_even_if_live_requests_take_longer_than_the_target(steps: Steps) -> None:
    steps.fill()
    before = sum(steps.left.values())
    for number in range(8):
        steps.add(f"live {number}", 100, 30, LIVE)
    for _ in range(30):
        steps.step()
    batch = [left for name, left in steps.left.items() if name.startswith("batch")]
    assert before - sum(batch) >= 30


def test_prompts_of_batches_longer_than_a_step_has_time_for_enter_in_parts(steps: Steps) -> None:
    steps.fill(4)
    for _ in range(40):
        steps.step()
    steps.add("live", 20, 60, LIVE)
    steps.step()
    steps.add("long", 500, 2)
    parts = [steps.step() for _ in range(59)]
    assert 0 < max(tokens.get("long", 0) for _, tokens in parts) < 30
    assert max(seconds for seconds, _ in parts) < 1.1 * TARGET
    assert steps.left["long"] < 2


def test_a_live_request_that_waits_for_the_blocks_of_a_long_prompt_does_not_hold_it_back(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Steps(type(steps.scheduler), monkeypatch, blocks=20)
    for number in range(4):
        small.add(f"batch {number}", 30, 20)
    for _ in range(60):
        small.step()
    small.add("long", 605, 4)
    for _ in range(4):
        small.step()
    small.add("live", 200, 4, LIVE)  # needs four blocks in its first step, and three are left
    for _ in range(30):
        small.step()
    assert not any(small.left.values())


def test_each_request_gets_all_its_tokens_with_live_ones_among_them(steps: Steps) -> None:
    steps.fill()
    for number in range(10):
        steps.add(f"live {number}", 30, 5, LIVE)
        for _ in range(4):
            steps.step()
    for _ in range(600):
        if not steps.step()[1]:
            break
    assert not any(steps.left.values())


def test_it_is_used_where_vllm_would_use_its_own_and_can_part_prompts() -> None:
    from inference.engines.vllm.scheduler import install

    assert install(config())
    assert not install(config(scheduling_policy="fcfs")), "all requests have one priority"
    assert not install(config(enable_chunked_prefill=False, max_num_batched_tokens=1024))
    assert not install(config(scheduler_cls="inference.engines.vllm.scheduler.LiveScheduler")), "the operator's"
