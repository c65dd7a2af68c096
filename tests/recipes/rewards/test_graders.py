"""Graders in the form of OpenAI score as their JSON says, and what cannot be used is refused with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batchyard.errors import RequestError
from batchyard.recipes import Answer, Scored
from recipes.rewards import graders
from tests.support.rewards import CATALOGUE, outcome


def grader(**values: Any) -> str:
    return json.dumps(values)


ANSWER = {"input": "{{ sample.output_text }}", "reference": "{{item.city.name}}"}


@pytest.mark.parametrize(
    ("operation", "answer", "score"),
    [
        ("eq", "Paris", 1),
        ("eq", "paris", 0),
        ("ne", "paris", 1),
        ("ne", "Paris", 0),
        ("like", "in Paris.", 1),
        ("like", "in PARIS.", 0),
        ("ilike", "in PARIS.", 1),
    ],
)
def test_a_string_check_compares_with_a_column_of_the_item(operation: str, answer: str, score: float) -> None:
    check = grader(type="string_check", name="city", operation=operation, **ANSWER)
    assert CATALOGUE.reward(check).name == "city"
    assert CATALOGUE.reward(check).columns == ("city.name",)
    assert outcome(check, answer, city={"name": "Paris"}).score == score


def test_text_similarity_passes_from_its_threshold_on() -> None:
    similar = grader(type="text_similarity", evaluation_metric="fuzzy_match", pass_threshold=0.8, **ANSWER)
    assert outcome(similar, "Paris", city={"name": "Paris"}) == Scored(1.0, 1.0, None, {"score": 1.0, "acc": 1.0})
    near = outcome(similar, "Pari", city={"name": "Paris"})
    assert (round(near.score, 4), near.acc) == (round(2 * 4 / 9, 4), 1.0)
    assert outcome(similar, "Rome", city={"name": "Paris"}).acc == 0.0


NAME = {"type": "text_similarity", "evaluation_metric": "fuzzy_match", "reference": "{{item.name}}"}
MAIL = {"type": "string_check", "operation": "eq", "reference": "{{item.mail}}"}
MULTI = {
    "type": "multi",
    "graders": {
        "name": NAME | {"input": "{{sample.output_json.name}}"},
        "mail": MAIL | {"input": "{{sample.output_json.mail}}"},
    },
}


@pytest.mark.parametrize(
    ("formula", "answer", "score"),
    [
        ("(name + mail) / 2", '{"name": "Ann", "mail": "a@b.c"}', 1.0),
        ("0.25 * name + 0.75*mail", '{"name": "Ann", "mail": "other"}', 0.25),
        ("min(name, mail) + 2^3 - 8", '{"name": "Ann", "mail": "other"}', 0.0),
        ("max(name, mail)", '{"name": "Ann", "mail": "other"}', 1.0),
        ("-floor(-name) * sqrt(4)", '{"name": "Ann", "mail": "other"}', 2.0),
        ("(name + mail) / 2", "no JSON", 0.0),
        ("(name + mail) / 2", '{"name": "Ann"}', 0.0),
    ],
)
def test_multi_combines_scores_by_its_formula(formula: str, answer: str, score: float) -> None:
    both = grader(calculate_output=formula, **MULTI)
    assert outcome(both, answer, name="Ann", mail="a@b.c").score == score


LABEL = {
    "type": "label_model",
    "model": "mini",
    "input": [{"role": "user", "content": "Is {{sample.output_text}} a good answer to {{item.prompt}}?"}],
    "labels": ["good", "bad"],
    "passing_labels": ["good"],
}


@pytest.mark.parametrize(
    ("text", "score"), [('{"result": 0.75}', 0.75), ('{"result": 1.5}', None), ("0.75", None), ('{"score": 1}', None)]
)
def test_a_models_score_is_the_result_of_its_json_within_the_range(text: str, score: float | None) -> None:
    values = {"type": "score_model", "model": "mini", "input": LABEL["input"], "pass_threshold": 0.7}
    asking = graders.of_model(json.dumps(values))
    assert asking is not None and asking.ask("grade").structure["json"]["properties"]["result"]["maximum"] == 1.0
    given = asking.scored(Answer(ok=True, text=text))
    if score is None:
        assert (given.score, given.error) == (0.0, "the grader's model gave no grade that can be read")
    else:
        assert (given.score, given.acc, given.error) == (score, 1.0, None)


def test_a_models_label_scores_1_if_it_is_one_that_passes() -> None:
    asking = graders.of_model(json.dumps(LABEL))
    assert asking is not None and asking.ask("grade").structure == {"choice": ["good", "bad"]}
    scored = [asking.scored(Answer(ok=True, text=text)) for text in ("good", "bad", "fine")]
    assert [(one.score, one.acc, one.pred, one.error is None) for one in scored] == [
        (1.0, 1.0, "good", True),
        (0.0, 0.0, "bad", True),
        (0.0, None, None, False),
    ]
    lost = asking.scored(Answer(ok=False, error={"code": "request_timeout", "message": "Too slow."}))
    assert (lost.score, lost.error) == (0.0, "the grader's model gave no grade: Too slow.")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"type": "python", "source": "…"}, r"grader: grader 'python' runs code of clients, which Batchyard does not"),
        ({"type": "score_model", "model": "m", "input": []}, "input: .*not empty"),
        (
            {"type": "score_model", "model": "m", "input": LABEL["input"], "range": [1, 0]},
            "range: .*lowest score comes first",
        ),
        (LABEL | {"passing_labels": ["godo"]}, "passing_labels: 'godo' is none of the labels"),
        (MULTI | {"graders": {"a": LABEL}, "calculate_output": "a"}, "graders.a: .*'string_check', 'text_similarity'"),
        (MULTI | {"graders": {"a": {"type": "python"}}, "calculate_output": "a"}, r"graders\.a: grader 'python' runs"),
        ({"type": "string_chek"}, "grader: .*string_chek"),
        ({"type": "string_check", "operation": "is", **ANSWER}, "operation: .*'eq', 'ne'"),
        ({"type": "text_similarity", "evaluation_metric": "bleu", **ANSWER}, "evaluation_metric: .*'fuzzy_match'"),
        (MULTI | {"calculate_output": "name + male"}, "calculate_output: 'male' is no grader; available: mail, name"),
        (MULTI | {"calculate_output": "__import__('os')"}, r"calculate_output: \"__import__\('os'\)\" cannot be part"),
        (MULTI | {"calculate_output": "name.real"}, r"calculate_output: 'name\.real' cannot be part of a formula"),
        (MULTI | {"calculate_output": "name +"}, r"calculate_output: 'name \+' is no formula"),
    ],
)
def test_a_grader_that_cannot_be_used_is_refused_with_its_place(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        graders.reward(json.dumps(values))
    with pytest.raises(RequestError, match="The grader cannot be used") as refused:
        CATALOGUE.reward(json.dumps(values), "options.reward")
    assert refused.value.param == "options.reward"


def test_a_grader_names_a_place_that_it_cannot_read() -> None:
    check = grader(type="string_check", operation="eq", input="{{answer}}", reference="x")
    with pytest.raises(ValueError, match=r"\{\{answer\}\} is neither item\.…, sample\.output_text nor"):
        outcome(check, "x")


def test_only_a_grader_that_asks_a_model_is_for_a_model() -> None:
    assert graders.of_model(None) is None
    assert graders.of_model("exact") is None
    assert graders.of_model(grader(type="string_check", operation="eq", **ANSWER)) is None


def test_a_models_grader_cannot_be_called_as_a_reward() -> None:
    with pytest.raises(TypeError, match="grader label_model asks a model, which recipe rollout does"):
        outcome(json.dumps(LABEL), "x", prompt="1 + 1")


def test_a_grader_asks_its_model_with_the_fields_of_the_item() -> None:
    asking = graders.of_model(json.dumps(LABEL))
    assert asking is not None
    assert asking.messages({"prompt": "1 + 1"}, "2") == [{"role": "user", "content": "Is 2 a good answer to 1 + 1?"}]
    with pytest.raises(KeyError):
        asking.messages({}, "2")


def test_an_answer_that_is_not_the_json_a_grader_reads_is_not_asked_about() -> None:
    content = "Is {{sample.output_json.name}} a name? {{sample.output_json}}"
    asking = graders.of_model(json.dumps(LABEL | {"input": [{"role": "user", "content": content}]}))
    assert asking is not None
    assert asking.messages({}, '{"name": "Ann"}') == [{"role": "user", "content": 'Is Ann a name? {"name": "Ann"}'}]
    assert asking.messages({}, '{"mail": 3}') is None
    assert asking.messages({}, "no JSON") is None


def test_a_formula_that_divides_by_zero_is_an_error_of_the_reward() -> None:
    with pytest.raises(ZeroDivisionError):
        outcome(
            grader(calculate_output="1 / (name - mail)", **MULTI), '{"name": "Ann", "mail": "a"}', name="Ann", mail="a"
        )
