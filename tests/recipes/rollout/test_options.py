"""Options of a rollout, and rows that it cannot score, are refused with their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from batchyard.recipes import InvalidItem
from tests.recipes.rollout.made import GSM8K, ROLLOUT, options


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"sampling": {"temperature": 0}}, r"^sampling\.temperature: at 0 all samples of a prompt are the same"),
        ({"reward": "gsm9k"}, r"^reward: No reward is named 'gsm9k'\. Did you mean 'gsm8k'\?"),
        ({"reward": {"acme/qa": "exakt"}}, r"^reward\.acme/qa: No reward is named 'exakt'\. Did you mean 'exact'"),
        ({"reward": {"acme/qa": 1}}, r"^reward\.acme/qa: a data source has the name of its reward, not 1"),
        ({"reward": {"type": "python", "source": ""}}, "^reward: The grader cannot be used: .* runs code of clients"),
        ({"extract": "last_numbr"}, "^extract: No extract is named 'last_numbr'"),
    ],
)
def test_options_that_cannot_be_are_refused_with_their_place(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        options(**values)


@pytest.mark.parametrize("values", [{"n": 0}, {"n": 1025}, {"sampling": {"n": 2}}, {"keep": "some"}])
def test_options_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        options(**values)


def columns(row: Mapping[str, Any], **values: Any) -> list[str]:
    assert ROLLOUT.columns is not None
    return list(ROLLOUT.columns(options(**values), row))


def test_a_row_needs_what_its_reward_reads() -> None:
    similar = {
        "type": "string_check",
        "operation": "eq",
        "input": "{{sample.output_text}}",
        "reference": "{{item.city.name}}",
    }
    assert columns(GSM8K) == ["reward_model.ground_truth"]
    assert columns(GSM8K, ground_truth="answer") == ["answer"]
    assert columns({"prompt": "Hi"}, reward="exact", ground_truth="answer") == ["answer"]
    assert columns({"data_source": "acme/qa"}, reward={"acme/qa": "exact"}) == ["reward_model.ground_truth"]
    assert columns(GSM8K, reward={"acme/qa": "exact"}) == ["reward_model.ground_truth"]
    assert columns({}, reward=similar) == ["city.name"]


@pytest.mark.parametrize(
    ("row", "code", "says"),
    [
        (
            {"data_source": "acme/qa"},
            "no_reward",
            "Data source 'acme/qa' has no reward; name one in the option `reward`",
        ),
        ({"prompt": "Hi"}, "no_reward", "Data source 'unknown' has no reward"),
        (GSM8K | {"responses": []}, "column_taken", "a column 'responses' of their own; rename the input's"),
    ],
)
def test_a_row_that_cannot_be_scored_or_written_is_no_item(row: dict[str, Any], code: str, says: str) -> None:
    with pytest.raises(InvalidItem, match=says) as refused:
        columns(row)
    assert refused.value.code == code
