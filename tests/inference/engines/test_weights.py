"""The fingerprint of a model's weights: the same for the same files, wherever they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.engines.weights import model_sha256


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


def test_hidden_files_and_folders_do_not_count(tmp_path: Path) -> None:
    assert model(tmp_path / "a", **{".cache__lock": "x", ".gitattributes": "y"}) == model(tmp_path / "b")


def test_a_model_that_is_nowhere_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="neither a folder nor"):
        model_sha256("nobody/no-such-model")
