"""Failures land in their category with the line that says so, by texts that engines, torch and Ray have written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from recipes.tune.cells import Cell, TunedModel
from recipes.tune.diagnosis import diagnose, repair
from tests.recipes.tune.made import ECHO, MINI, failed, repeat, result, the_cells

[CELL] = the_cells(MINI, batch=[256])
HALF = {"engine_args.max_num_seqs": 128}
STARTS = "engine vllm of model mini~0a1b2c3d does not start: "
CACHE = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
    "the engine (this flag also controls CPU memory reservation on the CPU backend, despite its name). See "
    "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
)
CONTEXT = (
    "ValueError: To serve at least one request with the model's max seq len (32768), (3.5 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (1.0 GiB). Based on the available memory, the estimated "
    "maximum model length is 9344. Try increasing `gpu_memory_utilization` (which also controls CPU memory on the "
    "CPU backend) or decreasing `max_model_len` when initializing the engine."
)
SHARE = (
    "ValueError: Free memory on device cuda:0 (31.5/79.1 GiB) on startup is less than desired GPU memory utilization "
    "(0.92, 72.77 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total capacity of 11.53 "
    "GiB of which 187.75 MiB is free. Including non-PyTorch memory, this process has 11.31 GiB memory in use."
)
WARM_UP = (
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try lowering "
    "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
)
RAY_MEMORY = (
    "its worker process has died. Worker exit type: USER_ERROR Worker exit detail: Task was killed due to the node "
    "running low on memory. Memory on the node (IP: 10.0.0.7) where the task was running was 32.53GB / 33.28GB "
    "(0.977449), which exceeds the memory usage threshold of 0.95."
)
RAY_DIED = (
    "engine vllm of model mini~0a1b2c3d died 13 times in one run, 13 of them without an answer between: its worker "
    "process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a "
    "connection error code 2. End of file. There are some potential root causes. (1) The process is killed by "
    "SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed "
    "unexpectedly due to SIGSEGV."
)
LONG = (
    "ValidationError: 1 validation error for ModelConfig\n  Value error, User-specified max_model_len (100000) is "
    "greater than the derived max_model_len (max_position_embeddings=2048 or model_max_length=None in model's "
    "config.json). To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. "
    "[type=value_error]\n    For further information visit https://errors.pydantic.dev/2.12/v/value_error"
)
FEW = (
    "1 validation error for SchedulerConfig\n  Value error, max_num_batched_tokens (128) must be greater than or "
    "equal to max_num_seqs (256). [type=value_error, input_value=ArgsKwargs((), {...}), input_type=ArgsKwargs]"
)
TIMED_OUT = (
    'engine vllm of model mini~0a1b2c3d did not start within 900 seconds; the cluster has {"CPU": 2.0}, of which free: '
    '{"CPU": 1.9}'
)


@pytest.mark.parametrize(
    ("error", "category", "severity", "overrides"),
    [
        (STARTS + CACHE, "memory", "error", HALF),
        (STARTS + CONTEXT, "memory", "error", {"engine_args.max_model_len": 9344}),
        (STARTS + SHARE, "memory", "error", {"engine_args.gpu_memory_utilization": 0.38}),
        (STARTS + CUDA, "memory", "error", HALF),
        (STARTS + WARM_UP, "memory", "error", HALF),
        (STARTS + "OSError: [Errno 12] Cannot allocate memory", "memory", "error", HALF),
        ("engine process ended by signal 9", "memory", "error", HALF),
        (RAY_MEMORY, "memory", "error", HALF),
        (STARTS + "ModuleNotFoundError: No module named 'flash_attn'", "dependency", "critical", {}),
        (
            STARTS + "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
            "dependency",
            "critical",
            {},
        ),
        (
            STARTS + "engine_args.max_seqs: vLLM has no such argument; did you mean max_num_seqs?",
            "argument",
            "error",
            {},
        ),
        (STARTS + FEW, "argument", "error", {"engine_args.max_num_batched_tokens": 256}),
        (STARTS + LONG, "argument", "error", {"engine_args.max_model_len": 2048}),
        (TIMED_OUT, "timeout", "error", HALF),
        ("the request ran longer than 600 seconds", "timeout", "error", HALF),
        ("the engine answered nothing for 630 seconds and was killed", "timeout", "error", HALF),
        (RAY_DIED, "cluster", "error", {}),
        (
            "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.",
            "cluster",
            "error",
            {},
        ),
        ("engine vllm of model mini ended each time it was started", "cluster", "error", {}),
        ("no Ray cluster at ray://head:10001: ConnectionError", "cluster", "critical", {}),
        ("the Ray node of model mini does not answer: The actor is unavailable", "cluster", "critical", {}),
        ("model mini waits for a GPU: engines of nano are at work on them", "cluster", "critical", {}),
        ("RuntimeError: the tokenizer's merges are odd", "unknown", "error", {}),
    ],
)
def test_a_failure_has_its_category_and_its_remedy(
    error: str, category: str, severity: str, overrides: Mapping[str, Any]
) -> None:
    diagnosis = diagnose(failed(CELL, error), MINI)
    assert diagnosis is not None
    assert (diagnosis.category, diagnosis.severity, diagnosis.overrides) == (category, severity, overrides)
    assert diagnosis.evidence.removesuffix("...") in error and diagnosis.remedy


def test_a_cause_in_the_evidence_comes_before_what_follows_from_it() -> None:
    lines = ("INFO: loading", f"ERROR: {CUDA}", "engine_died: the engine ended")
    diagnosis = diagnose(failed(CELL, RAY_DIED, *lines), MINI)
    assert diagnosis is not None and (diagnosis.category, diagnosis.evidence) == ("memory", lines[1])


def test_an_unknown_argument_is_renamed_to_the_nearest() -> None:
    [cell] = the_cells(ECHO, set={"engine_args.slot": [4]})
    error = (
        "engine echo of model echo~0 does not start: models.echo~0.engine_args.slot: engine echo has no such argument; "
        "did you mean slots?"
    )
    diagnosis = diagnose(failed(cell, error), ECHO)
    assert diagnosis is not None and diagnosis.remedy == "name slots in place of slot"
    repaired = repair(failed(cell, error), ECHO, [])
    assert repaired is not None and repaired.entry(ECHO)["engine_args"] == {"ms_per_token": 10, "slots": 4}


@pytest.mark.parametrize(
    ("arguments", "overrides"),
    [
        ({"kv_cache_memory_bytes": 1024}, {"engine_args.kv_cache_memory_bytes": 2048}),
        ({"gpu_memory_utilization": 0.4}, {"engine_args.gpu_memory_utilization": 0.6}),
        ({"gpu_memory_utilization": 0.9}, {"engine_args.gpu_memory_utilization": 0.95}),
        ({"gpu_memory_utilization": 0.95}, HALF),
    ],
)
def test_a_cache_that_is_too_small_gets_more_of_what_the_entry_gives_it(
    arguments: dict[str, Any], overrides: dict[str, Any]
) -> None:
    base = TunedModel("mini", {"engine": "vllm", "engine_args": arguments}, batch_argument="max_num_seqs")
    diagnosis = diagnose(failed(CELL, CACHE), base)
    assert diagnosis is not None and diagnosis.overrides == overrides


def test_no_cell_can_run_fewer_requests_than_one() -> None:
    [cell] = the_cells(MINI, batch=[1])
    diagnosis = diagnose(failed(cell, CUDA), MINI)
    assert diagnosis is not None and diagnosis.overrides == {} and "max_model_len" in diagnosis.remedy
    assert repair(failed(cell, CUDA), MINI, []) is None


def test_a_cell_whose_requests_all_failed_did_fail() -> None:
    slow = repeat(rows=10, ok=0, output_tokens=0, errors={"invalid_request": 1, "request_timeout": 9}, p95=None)
    diagnosis = diagnose(result(CELL, slow), MINI)
    assert diagnosis is not None and (diagnosis.category, diagnosis.evidence) == ("timeout", "request_timeout")
    assert diagnose(result(CELL, repeat(ok=1, errors={"request_timeout": 999})), MINI) is None


def test_a_cell_without_an_answer_in_its_time_may_hang_and_one_with_answers_is_slow() -> None:
    error = "the cell's budget of 30m ended: 0 of 100 rows of repeat 1 had ended"
    hanging = diagnose(failed(CELL, error, state="over_budget"), MINI)
    assert hanging is not None
    assert (hanging.category, hanging.severity, hanging.overrides) == ("timeout", "warning", HALF)
    slow = diagnose(result(CELL, state="over_budget", error=error), MINI)
    assert slow is not None and (slow.category, slow.overrides) == ("timeout", {})
    lost = diagnose(failed(CELL, error, "no Ray cluster at auto: gone", state="over_budget"), MINI)
    assert lost is not None and lost.category == "cluster"


def test_a_repair_is_a_cell_of_its_own_and_is_not_repaired_again() -> None:
    repaired = repair(failed(CELL, CUDA), MINI, [CELL.name])
    assert repaired == Cell(name="mini-256x1-repair", model="mini", overrides=HALF, batch=128, repair_of="mini-256x1")
    assert repaired is not None and repair(failed(repaired, CUDA), MINI, []) is None
    assert repair(result(CELL), MINI, []) is None
