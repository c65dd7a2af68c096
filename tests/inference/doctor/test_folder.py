"""Checks of a model's folder: where the tokenizer and the chat template may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchyard.models import ModelSpec
from inference.doctor import folder
from inference.engines import weights
from inference.heads import json_object


def spec(source: Path | str, **engine_args: Any) -> ModelSpec:
    return ModelSpec(name="mini", engine="echo", source=str(source), engine_args=engine_args)


def test_a_tokenizer_that_engine_args_name_is_not_looked_for(tmp_path: Path) -> None:
    for arguments in ({"tokenizer": "elsewhere"}, {"skip_tokenizer_init": True}):
        assert folder.tokenizer(spec(tmp_path, **arguments), tmp_path).result == "not checked"
    assert folder.tokenizer(spec(tmp_path), tmp_path).result == "failed"


@pytest.mark.parametrize("name", ["tokenizer.model", "tekken.json", "vocab.json"])
def test_a_tokenizer_of_another_kind_is_one_too(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    finding = folder.tokenizer(spec(tmp_path), tmp_path)
    assert (finding.result, finding.detail, finding.wrong) == ("ok", name, False)


def test_a_chat_template_may_stand_in_the_tokenizers_configuration(tmp_path: Path) -> None:
    missing = folder.chat_template(spec(tmp_path), tmp_path)
    assert missing is not None and missing.wrong and "/v1/chat/completions" in missing.detail
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    finding = folder.chat_template(spec(tmp_path), tmp_path)
    assert finding is not None and (finding.result, finding.detail) == ("ok", "tokenizer_config.json")


@pytest.mark.parametrize("content", ["{", "[1]", ""])
def test_a_configuration_that_cannot_be_read_is_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert json_object(tmp_path / "config.json") == {}


def test_a_model_that_is_nowhere_here_has_no_folder(tmp_path: Path) -> None:
    assert weights.folder_of(str(tmp_path)) == tmp_path
    assert weights.folder_of("nobody/no-such-model") is None
