"""Only requests that cannot fit are refused before an engine starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from batchyard.models import ModelSpec
from inference.requests.context_length import PIECE, ContextLength
from tests.support.stacks import ROOT

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
NANO = ROOT / "examples/models/nano"
LONGEST = 64


def context(
    source: Path = NANO, engine: str = "transformers", simulated: bool = False, **engine_args: Any
) -> ContextLength:
    spec = ModelSpec(name="nano", engine=engine, source=str(source), engine_args=engine_args)
    return ContextLength(spec, simulated=simulated)


def refusal(length: ContextLength, endpoint: str, body: dict[str, Any]) -> dict[str, Any] | None:
    answer = length.refusal(endpoint, body, len(json.dumps(body, ensure_ascii=False).encode()))
    if answer is None:
        return None
    assert answer.status_code == 400
    assert answer.body is not None
    error: dict[str, Any] = answer.body["error"]
    assert error["code"] == "context_length_exceeded"
    return error


def chat(*contents: Any, role: str = "user", **parameters: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for content in contents], **parameters}


@pytest.fixture(scope="module")
def small() -> ContextLength:
    return context(max_model_len=LONGEST)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(NANO / "tokenizer.json"))


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (CHAT, chat("7 " * 200), "messages"),
        (CHAT, chat("a", [{"type": "text", "text": "7 " * 200}]), "messages"),
        (CHAT, chat(*["seven words and some more of them"] * 100), "messages"),
        (CHAT, chat("hello", max_tokens=LONGEST + 1), "max_tokens"),
        (CHAT, chat("hello", max_completion_tokens=LONGEST + 1, max_tokens=1), "max_completion_tokens"),
        (COMPLETIONS, {"prompt": ["a", "7 " * 200]}, "prompt"),
        (COMPLETIONS, {"prompt": [5] * (LONGEST + 1)}, "prompt"),
        (EMBEDDINGS, {"input": [[5], [5] * (LONGEST + 1)]}, "input"),
    ],
)
def test_a_request_that_cannot_fit_is_refused(
    small: ContextLength, endpoint: str, body: dict[str, Any], param: str
) -> None:
    error = refusal(small, endpoint, body)
    assert error is not None
    assert error["param"] == param
    assert error["message"].startswith(f"This model's maximum context length is {LONGEST} tokens. However, ")


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (CHAT, chat("hello", max_tokens=LONGEST)),
        (CHAT, chat("hello", max_tokens=5 * LONGEST, max_completion_tokens=LONGEST)),
        (CHAT, chat("7 " * 200, role="assistant")),
        (CHAT, chat("\n" * 5000)),
        (CHAT, chat("7 " * 200, truncate_prompt_tokens=10)),
        (CHAT, chat([{"type": "image_url", "image_url": {"url": "x" * 5000}}])),
        (COMPLETIONS, {"prompt": [5] * LONGEST}),
        (COMPLETIONS, {"prompt": ["seven words and some more of them"] * 100}),
        (EMBEDDINGS, {"input": [[5] * LONGEST] * 10}),
    ],
)
def test_a_request_that_may_fit_is_left_to_the_engine(
    small: ContextLength, endpoint: str, body: dict[str, Any]
) -> None:
    assert refusal(small, endpoint, body) is None


@given(st.lists(st.text(max_size=60) | st.text("ab \n7é", max_size=60), min_size=1, max_size=6))
def test_nothing_is_refused_that_fits_by_the_models_own_count(
    small: ContextLength, tokenizer: Tokenizer, contents: list[str]
) -> None:
    whole = "".join(f"<|user|>{content.strip()}<|end|>" for content in contents)
    if refusal(small, CHAT, chat(*contents)) is not None:
        assert len(tokenizer.encode(whole)) > LONGEST
    if refusal(small, COMPLETIONS, {"prompt": contents}) is not None:
        assert max(len(tokenizer.encode(content)) for content in contents) > LONGEST


def test_an_ordinary_request_is_not_even_counted() -> None:
    length = context(max_model_len=512)
    assert refusal(length, CHAT, chat("word " * 150)) is None
    assert "_tokenizer" not in vars(length)
    assert refusal(length, CHAT, chat("word " * 300)) is None
    assert "_tokenizer" in vars(length)


def test_a_text_far_too_long_costs_no_more_than_one_just_too_long(small: ContextLength) -> None:
    error = refusal(small, COMPLETIONS, {"prompt": "7 " * 5_000_000})
    assert error is not None
    assert int(error["message"].split("at least ")[1].split()[0]) <= LONGEST + PIECE


def test_the_length_is_the_engines_argument_or_the_folders(tmp_path: Path) -> None:
    tokens = {"prompt": [5] * 1025}
    assert refusal(context(), COMPLETIONS, tokens) is not None
    assert refusal(context(engine="vllm"), COMPLETIONS, tokens) is not None
    assert refusal(context(max_model_len=2000), COMPLETIONS, tokens) is None
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 1024, "rope_scaling": {"rope_type": "yarn"}}')
    assert refusal(context(tmp_path), COMPLETIONS, tokens) is None
    (tmp_path / "config.json").write_text('{"text_config": {}}')
    assert refusal(context(tmp_path), COMPLETIONS, tokens) is None


@pytest.mark.parametrize(
    "unknown",
    [
        context(Path("Qwen/Qwen2.5-0.5B-Instruct")),
        context(simulated=True, max_model_len=LONGEST),
        context(engine="vllm", hf_overrides={"max_position_embeddings": 5}),
        context(engine="vllm", max_model_len="1k"),
    ],
)
def test_an_unknown_length_refuses_nothing(unknown: ContextLength) -> None:
    assert refusal(unknown, COMPLETIONS, {"prompt": [5] * 100_000}) is None


def test_without_its_tokenizer_only_token_ids_are_counted(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("no tokenizer")
    for length in (context(tmp_path, max_model_len=LONGEST), context(tokenizer="other/one", max_model_len=LONGEST)):
        assert refusal(length, CHAT, chat("7 " * 200)) is None
        assert refusal(length, COMPLETIONS, {"prompt": [5] * 65}) is not None
