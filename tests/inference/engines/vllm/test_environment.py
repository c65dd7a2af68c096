"""The environment of vLLM's process: what was measured to be best, unless the operator says otherwise."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.errors import EngineStartError
from batchyard.models import ModelSpec
from inference.engines.bounded_steps import STEP_SECONDS
from inference.engines.vllm import internals
from inference.engines.vllm.arguments import FEW_CPUS, KEPT_MEMORY, SMALL_BYTES, set_environment, weights_bytes

NAMES = ("VLLM_NO_USAGE_STATS", "HF_HUB_OFFLINE", "VLLM_MEDIA_URL_ALLOW_REDIRECTS", "OMP_NUM_THREADS", *KEPT_MEMORY)


def a_platform(name: str, capability: int = 90) -> SimpleNamespace:
    """vLLM's platform `cpu`, `cuda`, `rocm`, `xpu` or another one."""
    kinds = {f"is_{kind}": functools.partial(name.__eq__, kind) for kind in ("cpu", "cuda", "rocm", "xpu")}
    return SimpleNamespace(
        **kinds,
        device_name=name,
        get_device_name=lambda: "Tesla T4",
        has_device_capability=lambda least: capability >= least,
    )


def environment_of(
    source: Path | str,
    before: dict[str, str],
    *,
    cpu: bool = True,
    cpus: int = 2,
    platform: SimpleNamespace | None = None,
    **options: Any,
) -> dict[str, str]:
    """What `before` becomes on a machine with so many CPUs, whose vLLM is the build for the CPU or for a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(internals), "current_platform", platform or a_platform("cpu" if cpu else "cuda"))
        patch.setattr(os, "cpu_count", lambda: cpus)
        patch.setattr(os, "environ", dict(before))
        set_environment(ModelSpec(name="m", engine="vllm", source=str(source), **options))
        return dict(os.environ)


def weights(folder: Path, size: int) -> Path:
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size)
    return folder


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["", "0", "1", "7"])), st.booleans(), st.integers(1, 64))
def test_what_the_operator_has_set_stays_but_what_opens_doors_and_what_ray_has_set(
    tmp_path: Path, before: dict[str, str], cpu: bool, cpus: int
) -> None:
    after = environment_of(tmp_path, before, cpu=cpu, cpus=cpus)
    kept = before.keys() - {"VLLM_MEDIA_URL_ALLOW_REDIRECTS", "OMP_NUM_THREADS"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert after["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
    assert (after["VLLM_NO_USAGE_STATS"] and after["PYTHONFAULTHANDLER"] == "1") or "VLLM_NO_USAGE_STATS" in before
    assert ("OMP_NUM_THREADS" in after) == (cpu and cpus <= FEW_CPUS)


@pytest.mark.parametrize("name", ["cuda", "rocm", "xpu"])
def test_a_reproducible_model_has_batch_invariance_on_a_gpu_and_no_other_has(tmp_path: Path, name: str) -> None:
    platform = a_platform(name)
    assert environment_of(tmp_path, {}, platform=platform, reproducible=True)["VLLM_BATCH_INVARIANT"] == "1"
    assert "VLLM_BATCH_INVARIANT" not in environment_of(tmp_path, {}, platform=platform)
    assert "VLLM_BATCH_INVARIANT" not in environment_of(tmp_path, {}, reproducible=True)  # vLLM lacks it on CPUs


def test_a_reproducible_model_does_not_start_where_vllm_promises_nothing(tmp_path: Path) -> None:
    for platform, reason in ((a_platform("cuda", 75), r"8\.0, and Tesla T4 has less"), (a_platform("tpu"), "on tpu")):
        with pytest.raises(EngineStartError, match=reason):
            environment_of(tmp_path, {}, platform=platform, reproducible=True)


def test_only_an_engine_on_the_cpu_keeps_its_memory(tmp_path: Path) -> None:
    assert KEPT_MEMORY.items() <= environment_of(tmp_path, {}).items()
    assert not KEPT_MEMORY.keys() & environment_of(tmp_path, {}, cpu=False).keys()


def test_a_model_in_a_folder_asks_no_hub(tmp_path: Path) -> None:
    assert environment_of(tmp_path, {})["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in environment_of("acme/model", {})


@pytest.mark.parametrize(
    ("size", "cpus", "threads"),
    [(SMALL_BYTES, 2, "2"), (SMALL_BYTES - 1, 2, "1"), (SMALL_BYTES, FEW_CPUS, "4"), (SMALL_BYTES, FEW_CPUS + 1, None)],
)
def test_on_few_cpus_a_large_model_has_a_thread_on_each_and_a_small_one_has_one(
    size: int, cpus: int, threads: str | None, tmp_path: Path
) -> None:
    after = environment_of(weights(tmp_path, size), {"OMP_NUM_THREADS": "7"}, cpus=cpus)  # 7: Ray's
    assert after.get("OMP_NUM_THREADS") == threads


def test_a_model_that_is_still_to_be_fetched_counts_as_large(tmp_path: Path) -> None:
    assert weights_bytes("acme/model") == weights_bytes(str(tmp_path / "nowhere")) == math.inf
    assert environment_of("acme/model", {}, cpus=3)["OMP_NUM_THREADS"] == "3"


def test_only_files_with_weights_are_weighed(tmp_path: Path) -> None:
    assert weights_bytes(str(tmp_path)) == 0
    for name, size in (("a.safetensors", 100), ("b.bin", 20), ("c.pt", 3), ("tokenizer.json", 1000)):
        (tmp_path / name).write_bytes(b"x" * size)
    assert weights_bytes(str(tmp_path)) == 123


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"live": {"itl_ms": 80}}, "0.08"),
        ({"live": {"ttft_ms": 100}}, "0.05"),  # a token waits for two steps at most
        ({"live": {"itl_ms": 80, "bound_steps": False}}, None),
        ({"live": {"mode": "off"}}, None),
        ({"reproducible": True}, None),
    ],
)
def test_a_step_beside_live_requests_is_as_long_as_their_targets_allow(
    options: dict[str, Any], seconds: str | None, tmp_path: Path
) -> None:
    assert environment_of(tmp_path, {STEP_SECONDS: "9"}, **options).get(STEP_SECONDS) == seconds
