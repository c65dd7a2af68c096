"""A plugin of pytest with real vLLM that tests share: it takes tens of seconds to start.

Whoever kills one of these engines leaves it to the next test as it is: who asks it next starts it again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from batchyard.models import ModelSpec
from inference.engines import orphan_reaper
from tests.support import encoders, vllm_commands
from tests.support.stacks import ROOT, RunningStack

FOLDER = ROOT / "examples/models"
MINI, ADAPTERS = FOLDER / "mini", FOLDER / "adapters"
NAMES = ("descending", "brackets")
"""The adapters of `mini`."""
CACHE = 64 * 2**20
CONTEXT = 512
MODELS = f"""
[models.mini]
engine = "vllm"
source = "{MINI}"
adapters.descending.source = "{ADAPTERS / "descending"}"
adapters.brackets.source = "{ADAPTERS / "brackets"}"
[models.mini.engine_args]
dtype = "float32"
max_model_len = {CONTEXT}
max_num_seqs = 8
kv_cache_memory_bytes = {CACHE}
enable_auto_tool_choice = true
tool_call_parser = "hermes"

[models.eyes]
engine = "vllm"
source = "{FOLDER / "colours"}"
[models.eyes.engine_args]
dtype = "bfloat16"
kv_cache_memory_bytes = {CACHE}
reasoning_parser = "deepseek_v3"
default_chat_template_kwargs = {{ enable_thinking = true }}

[models.looks]
engine = "vllm"
source = "{FOLDER / "colours"}"
endpoints = ["/v1/embeddings", "/v1/score", "/v1/rerank", "/pooling"]
[models.looks.engine_args]
dtype = "float32"
kv_cache_memory_bytes = {CACHE}

[models.ears]
engine = "vllm"
source = "{FOLDER / "tones"}"
endpoints = ["/v1/audio/transcriptions", "/v1/audio/translations"]
[models.ears.engine_args]
dtype = "float32"
kv_cache_memory_bytes = {CACHE}
"""
START_SECONDS = 1200
"""A test may be the one that waits for the starts of a stack, an engine and `vllm serve`, on a busy machine."""
CLIENT_SECONDS = 600
"""A live request may be the one that starts an engine."""
ARGUMENTS = {"dtype": "float32", "max_model_len": 256, "kv_cache_memory_bytes": CACHE}
STEP = {"max_num_batched_tokens": 64, "max_num_seqs": 64}
"""A step that many prompts exceed, alone or together, as thousands of requests to a large model exceed a real one."""
PLANTED = "tests.inference.engines.vllm.planted"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("vllm") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(START_SECONDS))


def tiny_spec(tiny: Path, **arguments: Any) -> ModelSpec:
    """Return the entry of the engine of model `tiny` that tests on Ray share; with `arguments`, of another one.

    It holds fewer requests than some tests have, so that the first come back before the last.
    """
    arguments = {**ARGUMENTS, **STEP, "worker_extension_cls": f"{PLANTED}.OnRequest", **arguments}
    return ModelSpec(name="tiny", engine="vllm", source=str(tiny), engine_args=arguments, max_in_flight=64)


def encoder_spec(name: str) -> ModelSpec:
    """Return the entry of the engine of an example encoder that tests on Ray share."""
    return encoders.encoder(name, "vllm", kv_cache_memory_bytes=CACHE)


def engine_processes(model: str) -> list[psutil.Process]:
    """Return the processes that a model's engines on this test's cluster have started."""
    import ray

    from inference.residents import directory

    return tagged(psutil.process_iter(), f"{ray.get_runtime_context().get_node_id()}/{directory.PREFIX}{model}:")


def tagged(processes: Iterable[psutil.Process], tag: str) -> list[psutil.Process]:
    """Return those in whose tag for the reaper this is, but no reaper."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            is_reaper = orphan_reaper.__name__ in process.cmdline()
            if tag in process.environ().get(orphan_reaper.TAG, "") and not is_reaper:
                found.append(process)
    return found


def engine_core(processes: list[psutil.Process]) -> psutil.Process:
    """Return the process in which vLLM computes: its name does not always tell it, but it has the most memory."""
    return max(processes, key=lambda process: process.memory_info().rss)


@pytest.fixture(scope="session")
def vllm_stack(request: pytest.FixtureRequest) -> Iterator[RunningStack]:
    """A stack of real vLLM: `mini` with adapters and tools, and models of images and audio. Each starts when asked."""
    recipes = str(ROOT / "examples/recipes")
    stack = RunningStack.start(MODELS, BATCHYARD_RECIPES=recipes, BATCHYARD_LIVE_START_SECONDS=f"{CLIENT_SECONDS}")
    try:
        yield stack
    finally:
        stack.kill()
        if not request.session.testsfailed:
            shutil.rmtree(stack.data.parent, ignore_errors=True)


def mini_flags() -> list[str]:
    """Return the flags with which vLLM's own commands serve `mini` as `vllm_stack` does."""
    modules = [f"{name}={ADAPTERS / name}" for name in NAMES]
    # One place more than adapters: on the CPU vLLM gives rows of the base the weights in the last one.
    adapters = {"enable_lora": True, "max_loras": len(NAMES) + 1, "max_lora_rank": 8, "lora_modules": modules}
    more = {"max-model-len": CONTEXT, "enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    return vllm_commands.flags(MINI, "mini", enable_scale_out=True, **adapters, **more)


@pytest.fixture(scope="session")
def vllm_serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of `vllm serve`, which serves `mini` as `vllm_stack` does."""
    with vllm_commands.serving(tmp_path_factory.mktemp("serve") / "serve.log", *mini_flags()) as client:
        yield client
