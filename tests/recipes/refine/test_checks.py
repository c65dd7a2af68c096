"""Options of a refinement that cannot be meant together are refused by their path, with what may be meant."""

from __future__ import annotations

from typing import Any

import pytest

from recipes.refine.options import Refine, check, named_columns


def options(**changes: Any) -> Refine:
    return Refine.model_validate({"tiers": [{"model": "small"}], "sampling": {"temperature": 0.7}} | changes)


def votes(**changes: Any) -> dict[str, Any]:
    return {"votes": {"models": ["a"], "extract": "last_number"} | changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prompts": {"retry": "Again: {feedbak}"}}, r"prompts\.retry: .*\{feedbak\}. Did you mean \{feedback\}"),
        ({"prompts": {"escalate": "{answr}"}}, r"prompts\.escalate: .*Did you mean \{answer\}"),
        ({"reviewer": {"model": "r", "prompt": "{anser}"}}, r"reviewer\.prompt: .*Did you mean \{answer\}"),
        (votes(extract="last_numer"), r"votes\.extract: No extract is named 'last_numer'"),
        (votes(n=2, sampling={"temperature": 0}), r"votes\.n: At temperature 0"),
        (votes(strategy="weighted", weights={"smal": 2}), r"votes\.weights: .*Did you mean 'small'"),
        (votes(weights={"small": 2}), r"votes\.weights: Strategy \w+ has no weights"),
    ],
)
def test_a_fault_is_named_with_its_path_and_the_remedy(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check(options(**changes))


def test_what_can_be_meant_passes() -> None:
    check(options())
    check(options(**votes(n=3), reviewer={"model": "r"}, prompts={"retry": "{feedback} {answer}"}))


def test_the_columns_that_gates_compare_with_are_named() -> None:
    gates = [
        {"gate": "contains", "value": "{{city}}"},
        {"gate": "not-empty"},
        {"gate": "is-json", "value": {"a": "{{b}}"}},
    ]
    assert named_columns(options(gates=gates), {}) == ["city"]
