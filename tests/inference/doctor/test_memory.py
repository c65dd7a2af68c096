"""The memory that a model needs, from its files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchyard.models import ModelSpec
from inference.doctor import memory
from inference.doctor.memory import GIB, Machine, token_bytes, weights_bytes

SPEC = ModelSpec(name="mini", engine="echo")
LLAMA = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64}


def write_weights(folder: Path, name: str, **tensors: tuple[str, int]) -> None:
    """Write the header of a safetensors file whose tensors have these types and sizes in bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for tensor, (kind, size) in tensors.items():
        header[tensor] = {"dtype": kind, "shape": [size], "data_offsets": [0, size]}
    text = json.dumps(header).encode()
    (folder / name).write_bytes(len(text).to_bytes(8, "little") + text)


def test_weights_are_counted_as_they_are_loaded_and_packed_ones_as_they_are_stored(tmp_path: Path) -> None:
    write_weights(tmp_path, "a.safetensors", embedding=("BF16", 100))
    write_weights(tmp_path, "b.safetensors", quantized=("U8", 10))
    assert weights_bytes(tmp_path, None) == weights_bytes(tmp_path, "auto") == 110
    assert weights_bytes(tmp_path, "float32") == 210
    assert weights_bytes(tmp_path, "bfloat16") == 110


def test_a_folder_of_older_files_is_counted_by_their_sizes_and_an_empty_one_not_at_all(tmp_path: Path) -> None:
    assert weights_bytes(tmp_path, None) is None
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 50)
    assert weights_bytes(tmp_path, "float32") == 50


@pytest.mark.parametrize(
    ("config", "dtype", "size"),
    [
        (LLAMA, "bfloat16", 2 * 2 * 2 * 8 * 2),
        (LLAMA | {"torch_dtype": "float16"}, None, 2 * 2 * 2 * 8 * 2),
        (LLAMA | {"head_dim": 16}, "float32", 2 * 2 * 2 * 16 * 4),
        ({"text_config": LLAMA}, "float32", 2 * 2 * 2 * 8 * 4),
        ({key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}, "half", 2 * 2 * 8 * 8 * 2),
        ({"hidden_size": 64}, "half", None),
    ],
)
def test_a_token_takes_a_key_and_a_value_of_each_head_in_each_layer(
    config: dict[str, Any], dtype: str | None, size: int | None
) -> None:
    assert token_bytes(config, dtype) == size


def test_a_damaged_file_is_a_failure_with_a_remedy_and_no_crash(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"\x08")
    finding = memory.memory(SPEC, tmp_path, Machine(GIB))
    assert (finding.result, "download the model again" in finding.remedy) == ("failed", True)
