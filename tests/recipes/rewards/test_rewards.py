"""The built-in rewards score as their sources say."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchyard.errors import ConfigurationError, RequestError
from batchyard.recipes import Answer, Scored, scored
from recipes import registry
from recipes.rewards import LINEAR, graders, mathematics

CATALOGUE = registry.load(None)
PIECES = ["#### ", "####", "#", " ", "$", ",", ".", "-", "1", "42", "1,234", "0.5", "The answer is ", "\n", "é", "٣"]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join)


def outcome(name: str, answer: str, ground_truth: Any = "", /, **columns: Any) -> Scored:
    return scored(CATALOGUE.reward(name)("any", answer, ground_truth, columns))


def verls_answer(text: str, method: str) -> str | None:
    """A transcription of verl's `extract_solution` (verl/utils/reward_score/gsm8k.py, 0.9.1)."""
    if len(text) > 300:
        text = text[-300:]
    if method == "strict":
        solutions = re.findall("#### (\\-?[0-9\\.\\,]+)", text)
        return solutions[-1].replace(",", "").replace("$", "") if len(solutions) > 0 else None
    final = None
    for final in reversed(re.findall("(\\-?[0-9\\.\\,]+)", text)):
        if final not in ["", "."]:
            break
    return final


def agrees_with_verl(text: str, truth: str) -> None:
    for name, method in (("gsm8k", "strict"), ("gsm8k-flexible", "flexible")):
        answer = verls_answer(text, method)
        expected = 0.0 if answer is None or answer != truth else 1.0
        result = outcome(name, text, truth)
        assert (result.score, result.pred) == (expected, answer)


@given(TEXTS, st.sampled_from(["42", "1234", "1,234", ".", "-", "-42", "0.5"]))
@example("#### 42" + "x" * 300, "42")
@example("." + "x" * 299 + " . . .", ".")
@example("#### $42", "42")
@settings(max_examples=300)
def test_gsm8k_is_verls(text: str, truth: str) -> None:
    agrees_with_verl(text, truth)


def test_gsm8k_is_verls_on_ten_thousand_strings_of_any_length() -> None:
    source = random.Random(42)
    lengths = set()
    for _ in range(10_000):
        text = "".join(source.choices(PIECES, k=source.randrange(150)))
        found = [answer for method in ("strict", "flexible") if (answer := verls_answer(text, method)) is not None]
        agrees_with_verl(text, source.choice([*found, "42"]))
        lengths.add(len(text) > 300)
    assert lengths == {True, False}


@pytest.mark.parametrize(
    ("name", "answer", "truth", "score", "pred"),
    [
        ("exact", " Paris\n", "Paris", 1.0, "Paris"),
        ("exact", "paris", "Paris", 0.0, "paris"),
        ("exact", "42", 42, 1.0, "42"),
        ("numeric", "That is 1,234.0 in all.", "#### 1234", 1.0, "1234"),
        ("numeric", "95.0", 95, 1.0, "95"),
        ("numeric", "none", "95", 0.0, None),
        ("numeric", f"{10**40 + 1}", f"{10**40}", 0.0, f"{10**40 + 1}"),
        ("regex", "It is Paris.", r"\bParis\b", 1.0, None),
        ("regex", "It is Lyon.", r"\bParis\b", 0.0, None),
    ],
)
def test_a_reward_compares_as_step_score_does(name: str, answer: str, truth: Any, score: float, pred: Any) -> None:
    result = outcome(name, answer, truth)
    assert (result.score, result.pred) == (score, pred)


@pytest.mark.parametrize(
    ("answer", "truth", "score"),
    [
        (r"So the answer is $\boxed{\frac{1}{2}}$.", "0.5", 1.0),
        (r"So the answer is $\boxed{\frac{1}{3}}$.", "0.5", 0.0),
        ("I do not know", "0.5", 0.0),
        ("The answer is 1/2", r"\frac{1}{2}", 1.0),
    ],
)
def test_math_compares_values_not_texts(answer: str, truth: str, score: float) -> None:
    assert outcome("math", answer, truth).score == score


def test_math_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mathematics.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'batchyard\[math\]'"):
        outcome("math", "1", "1")


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
    assert asking is not None and asking.form()["json"]["properties"]["result"]["maximum"] == 1.0
    given = asking.scored(Answer(ok=True, text=text))
    if score is None:
        assert (given.score, given.error) == (0.0, "the grader's model gave no grade that can be read")
    else:
        assert (given.score, given.acc, given.error) == (score, 1.0, None)


def test_a_models_label_scores_1_if_it_is_one_that_passes() -> None:
    asking = graders.of_model(json.dumps(LABEL))
    assert asking is not None and asking.form() == {"choice": ["good", "bad"]}
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
        ({"type": "score_model", "model": "m", "input": []}, "input: .*at least 1"),
        (LABEL | {"passing_labels": ["godo"]}, "passing_labels: 'godo' is none of the labels"),
        (MULTI | {"graders": {"a": LABEL}, "calculate_output": "a"}, "graders.a: .*'string_check', 'text_similarity'"),
        (MULTI | {"graders": {"a": {"type": "python"}}, "calculate_output": "a"}, r"graders\.a: grader 'python' runs"),
        ({"type": "string_chek"}, "grader: .*string_chek"),
        ({"type": "string_check", "operation": "is", **ANSWER}, "operation: .*'eq', 'ne'"),
        ({"type": "text_similarity", "evaluation_metric": "bleu", **ANSWER}, "evaluation_metric: .*'fuzzy_match'"),
        (MULTI | {"calculate_output": "name + male"}, "calculate_output: 'male' is no grader; there are mail, name"),
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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1", {"acc": 1}, [1]])
def test_what_is_no_finite_number_is_no_score(value: Any) -> None:
    with pytest.raises(TypeError, match="a reward returns a number"):
        scored(value)


def test_rewards_that_run_without_a_process_of_their_own_are_rewards() -> None:
    assert set(CATALOGUE.rewards) >= LINEAR
