"""The arguments with which vLLM loads a model's adapters."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from batchyard.errors import ConfigurationError
from batchyard.models import Adapter, ModelSpec, vllm_installed
from inference.engines.vllm import internals
from inference.engines.vllm.arguments import MAX_RANK, engine_arguments
from tests.support.stacks import ROOT

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed")]
MODELS = ROOT / "examples/models"


def arguments(**engine_args: Any) -> Any:
    adapters = {name: Adapter(source=str(MODELS / "adapters" / name)) for name in ("descending", "brackets")}
    spec = ModelSpec(
        name="mini", engine="vllm", source=str(MODELS / "mini"), adapters=adapters, engine_args=engine_args
    )
    return engine_arguments(spec)


def test_the_rank_is_the_least_that_has_room_for_all_adapters_and_each_has_a_place() -> None:
    made = arguments()
    assert (made.enable_lora, made.max_lora_rank, made.max_cpu_loras) == (True, 8, 3)
    assert [(module.name, module.path) for module in made.lora_modules] == [
        (name, str(MODELS / "adapters" / name)) for name in ("descending", "brackets")
    ]
    on_engine = internals.AsyncEngineArgs.from_cli_args(made)
    assert (on_engine.enable_lora, on_engine.max_lora_rank, on_engine.max_loras) == (True, 8, 3)


def test_the_operators_arguments_override_them() -> None:
    made = arguments(max_lora_rank=64, max_loras=5)
    assert (made.max_lora_rank, made.max_loras) == (64, 5)
    with pytest.raises(ConfigurationError, match="at least 3, or leave it out"):
        arguments(max_loras=2)


def test_no_greater_rank_is_let_through_than_vllm_takes() -> None:
    assert max(get_args(internals.MaxLoRARanks)) == MAX_RANK


def test_vllm_gives_rows_without_an_adapter_the_weights_in_the_last_place_on_the_cpu() -> None:
    """Once it does not, `max_loras` needs no place more than there are adapters."""
    import torch
    from vllm.lora.ops.torch_ops import bgmv_expand

    weights = torch.stack([torch.zeros(1, 2, 1), torch.ones(1, 2, 1)])  # of two places
    row = torch.zeros(1, 2)
    bgmv_expand(torch.ones(1, 1), weights, row, torch.tensor([-1]), True)
    assert row.tolist() == [[1.0, 1.0]]
