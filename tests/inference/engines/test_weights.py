"""The fingerprint of a model's weights: the same for the same files, wherever they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from inference.engines import adapters
from inference.engines.weights import model_sha256
from tests.support.stacks import ROOT


def model(folder: Path, **files: str) -> str:
    """Write a model's files, and return its fingerprint."""
    for name, content in ({"config": "{}", "weights": "1"} | files).items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return model_sha256(str(folder))


def test_the_same_files_have_the_same_fingerprint_wherever_they_are(tmp_path: Path) -> None:
    assert model(tmp_path / "a") == model(tmp_path / "b")


def test_another_content_another_name_or_another_file_is_another_model(tmp_path: Path) -> None:
    prints = [
        model(tmp_path / "a"),
        model(tmp_path / "b", weights="2"),
        model(tmp_path / "c", adapter__weights="1"),
        model(tmp_path / "d", adapter="1"),
    ]
    assert len(set(prints)) == 4


@pytest.mark.parametrize(
    ("folder", "file"),
    [
        ("nano", "model.safetensors"),
        ("nano", "chat_template.jinja"),
        ("nano", "tokenizer.json"),
        ("adapters/brackets", "adapter_model.safetensors"),
        ("adapters/brackets", "adapter_config.json"),
    ],
)
def test_one_bit_of_any_file_of_a_model_or_an_adapter_is_another_one(tmp_path: Path, folder: str, file: str) -> None:
    source = ROOT / "examples/models" / folder
    changed = Path(shutil.copytree(source, tmp_path / "changed"))
    config = "config.json" if folder == "nano" else adapters.CONFIG
    assert model_sha256(str(changed), config) == model_sha256(str(source), config)
    content = bytearray((changed / file).read_bytes())
    content[len(content) // 2] ^= 1
    (changed / file).write_bytes(content)
    assert model_sha256(str(changed), config) != model_sha256(str(source), config)


def test_hidden_files_and_folders_do_not_count(tmp_path: Path) -> None:
    assert model(tmp_path / "a", **{".cache__lock": "x", ".gitattributes": "y"}) == model(tmp_path / "b")


def test_a_model_that_is_nowhere_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="neither a folder nor"):
        model_sha256("nobody/no-such-model")
