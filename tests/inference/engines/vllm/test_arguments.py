"""vLLM's arguments: the operator's over ours over vLLM's, except which domains media come from."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from batchyard.endpoints.catalog import AUDIO
from batchyard.errors import ConfigurationError
from batchyard.models import ModelSpec, vllm_installed
from inference.engines.registry import check_arguments
from inference.engines.vllm import internals
from inference.engines.vllm.arguments import (
    CPU_DEFAULTS,
    NO_DOMAIN,
    ONE_PROCESS,
    PARALLEL,
    OfVLLM,
    defaults,
    engine_arguments,
)
from tests.support.stacks import ROOT

with_vllm = pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed")


def model(endpoints: tuple[Any, ...] = ("/v1/chat/completions",), **engine_args: Any) -> ModelSpec:
    source = str(ROOT / "examples/models/nano")
    return ModelSpec(name="nano", engine="vllm", source=source, endpoints=endpoints, engine_args=engine_args)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Says what vLLM runs on, and how many CPUs there are."""

    def set_(*, cpu: bool, cpus: int = 2) -> None:
        monkeypatch.setitem(vars(internals), "current_platform", SimpleNamespace(is_cpu=lambda: cpu))
        monkeypatch.setattr(os, "cpu_count", lambda: cpus)

    return set_


def test_on_a_gpu_only_what_helps_everywhere_is_set(machine: Any) -> None:
    machine(cpu=False)
    common = {"disable_log_stats": True, "scheduling_policy": "priority"}
    assert defaults(model()) == {"enable_prefix_caching": True, **common}
    assert defaults(model(("/classify",))) == common, "an encoder has no cache"
    assert defaults(model(AUDIO)) == common, "nor has what looks at one"


def test_on_few_cpus_scheduler_and_model_share_a_process(machine: Any) -> None:
    for cpus, one_process in ((2, True), (16, False)):
        machine(cpu=True, cpus=cpus)
        ours = defaults(model())
        assert CPU_DEFAULTS.items() <= ours.items()
        assert (ours.get("distributed_executor_backend") == ONE_PROCESS) == one_process


@pytest.mark.parametrize("name", sorted(PARALLEL))
def test_a_model_over_several_processes_keeps_vllms_way_to_start_them(name: str, machine: Any) -> None:
    machine(cpu=True)
    assert "distributed_executor_backend" not in defaults(model(**{name: 2}))


def test_the_cache_on_the_cpu_is_the_operators_or_ours() -> None:
    assert OfVLLM.cache_bytes(model(), None) == 2**30
    assert OfVLLM.cache_bytes(model(kv_cache_memory_bytes=2**20), None) == 2**20


@pytest.mark.vllm
@with_vllm
def test_the_operators_arguments_are_over_ours() -> None:
    ours = engine_arguments(model())
    assert (ours.model, ours.served_model_name, ours.enable_prefix_caching) == (model().source, ["nano"], True)
    changed = engine_arguments(model(enable_prefix_caching=False, max_num_seqs=7, served_model_name=["other"]))
    assert (changed.enable_prefix_caching, changed.max_num_seqs, changed.served_model_name) == (False, 7, ["other"])


@pytest.mark.vllm
@with_vllm
def test_a_model_of_vectors_alone_pools_and_one_that_also_writes_does_not() -> None:
    vectors = engine_arguments(model(("/v1/embeddings", "/v1/score")))
    both = engine_arguments(model(("/v1/embeddings", "/v1/completions")))
    decides = engine_arguments(model(("/v1/systemone",)))
    assert (vectors.runner, both.runner, decides.runner) == ("pooling", "auto", "auto")


@pytest.mark.vllm
@with_vllm
@pytest.mark.parametrize(
    ("allowed", "domains"),
    [(None, [NO_DOMAIN]), ([], [NO_DOMAIN]), (["Images.example.org"], ["images.example.org"])],
)
def test_vllm_fetches_media_from_allowed_domains_only(allowed: list[str] | None, domains: list[str]) -> None:
    """To vLLM an empty list allows every domain."""
    arguments = {} if allowed is None else {"allowed_media_domains": allowed}
    assert engine_arguments(model(**arguments)).allowed_media_domains == domains


@pytest.mark.vllm
@with_vllm
def test_an_argument_that_vllm_does_not_have_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"engine_args\.max_modellen.*max_model_len"):
        check_arguments(model(max_modellen=5))
