"""Options of `generate` that cannot be are refused with their place."""

from __future__ import annotations

from typing import Any

import pytest

from recipes.generate.options import Generate, check


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"personas": ["a nurse"], "templates": ["Write."]}, "personas: no template names {persona}"),
        ({"templates": ["Write as {persona}."]}, "personas: {persona} has a place"),
        ({"templates": ["Write {"]}, "templates.0: "),
        ({"system": "You are }"}, "system: "),
        ({"requests": 1, "judge": "rater"}, "requests: one candidate takes 2"),
        ({"sampling": {"temperature": 0}, "similarity": None}, "sampling.temperature: at 0 drafts repeat"),
        ({"answers": {"model": "m", "n": 2}}, "answers.n: nobody says which answer is the best"),
        (
            {"answers": {"model": "m", "n": 2, "sampling": {"temperature": 0}}, "judge": "rater"},
            "answers.sampling.temperature: at 0 all answers are the same",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:
        check(Generate.model_validate({"model": "m", "count": 5, **options}))
    assert message in str(refused.value)


def test_a_candidate_costs_its_draft_its_answers_and_their_ratings() -> None:
    def cost(**options: Any) -> int:
        return Generate.model_validate({"model": "m", "count": 5, **options}).cost

    assert (cost(), cost(judge="r"), cost(answers="a")) == (1, 2, 2)
    assert cost(answers={"model": "a", "n": 3}, judge="r") == 7


def test_doubled_braces_name_no_persona() -> None:
    options = Generate.model_validate({"model": "m", "count": 5, "templates": ["Write {{persona}}."]})
    check(options)
