"""Tokens of a trajectory: what the model has sampled, and turns that do not go on from the one before."""

from __future__ import annotations

from typing import Any

from batchyard.recipes import Answer
from recipes.agent import tokens
from recipes.agent.tokens import tokens_of


def an_answer(prompt: list[int] | None, response: list[int] | None, logprobs: list[float] | None = None) -> Answer:
    content = None if logprobs is None else {"content": [{"token": "x", "logprob": value} for value in logprobs]}
    extra = {"prompt_token_ids": prompt, "token_ids": response, "logprobs": content}
    return Answer(ok=True, extra={name: value for name, value in extra.items() if value is not None})


def kept(*answers: Answer) -> list[dict[str, Any]]:
    return [{"text": "", "tokens": each} for each in tokens_of(answers)]


def test_the_tokens_of_turns_are_one_sequence_with_a_mask_of_what_was_sampled() -> None:
    turns = kept(an_answer([1, 2], [3, 4], [-0.1, -0.2]), an_answer([1, 2, 3, 4, 5, 6], [7], [-0.3]))
    assert tokens.flat(turns) == {
        "prompt_ids": [1, 2],
        "response_ids": [3, 4, 5, 6, 7],
        "response_mask": [1, 1, 0, 0, 1],
        "response_logprobs": [-0.1, -0.2, 0.0, 0.0, -0.3],
    }


def test_a_turn_whose_prompt_is_written_otherwise_has_all_of_its_prompt_and_no_sequence_holds_all() -> None:
    turns = kept(an_answer([1, 2], [3, 4]), an_answer([1, 2, 9, 5], [7]))
    assert turns[1]["tokens"] == {"goes_on": False, "prompt_ids": [1, 2, 9, 5], "response_ids": [7], "logprobs": None}
    assert set(tokens.flat(turns).values()) == {None}


def test_without_ids_there_are_no_tokens_and_without_logprobs_of_all_there_are_none() -> None:
    assert kept(an_answer(None, [3]))[0]["tokens"] is None
    assert set(tokens.flat(kept(an_answer(None, [3]))).values()) == {None}
    flat = tokens.flat(kept(an_answer([1], [2, 3], [-0.1])))
    assert (flat["response_mask"], flat["response_logprobs"]) == ([1, 1], None)
