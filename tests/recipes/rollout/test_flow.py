"""Recipe rollout: n samples of each prompt, scored, in the files that trainers read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from batchyard.recipes import Answer, Item, Options, Report, Scored, blocks
from batchyard.recipes.program import Request, play
from recipes.measures import verl
from recipes.rollout.options import Rollout
from tests.recipes.rollout.made import GSM8K, LOST, QUESTION, ROLLOUT, options, run, scripted, table_of
from tests.support.played import finished, played
from tests.support.stacks import ROOT


def view(report: Report) -> list[Mapping[str, Any]]:
    return blocks.as_json(report.view)


def test_each_sample_is_a_request_with_a_seed_of_its_own() -> None:
    requests: list[Request] = []

    def answer(item: Item, request: Request) -> str:
        requests.append(request)
        return "#### 42"

    results, _ = run([GSM8K], answer, sampling={"temperature": 0.8, "max_tokens": 64})
    item = Item(0, "item-0", GSM8K)
    assert [request.seed for request in requests] == [item.seed("sample", number) for number in range(4)]
    assert [request.custom_id(item) for request in requests] == [f"item-0/sample.1.{number}" for number in range(4)]
    assert requests[0].body == {
        "model": "mini",
        "messages": QUESTION,
        "temperature": 0.8,
        "max_tokens": 64,
        "seed": requests[0].seed,
    }
    assert table_of(results)["seeds"].to_pylist() == [[request.seed for request in requests]]


@pytest.mark.parametrize("values", [{"seeds": "none"}, {"n": 1, "sampling": {"temperature": 0}}])
def test_a_sample_without_chance_or_by_choice_has_no_seed(values: dict[str, Any]) -> None:
    bodies: list[Mapping[str, Any]] = []

    def answer(item: Item, request: Request) -> str:
        bodies.append(request.body)
        return "#### 42"

    results, _ = run([GSM8K], answer, **values)
    assert all("seed" not in body for body in bodies)
    assert set(table_of(results)["seeds"].to_pylist()[0]) == {None}


def by_seed(item: Item, request: Request) -> str:
    return f"#### {request.seed}"


def test_one_seed_of_a_job_gives_one_file_and_another_another() -> None:
    def file(job_seed: int) -> bytes:
        results = played(ROLLOUT, [GSM8K] * 3, options(), by_seed, job_seed)
        finished(ROLLOUT, results, options())
        return results.artifacts["rollouts.parquet"] + results.artifacts["samples.jsonl"]

    assert file(1) == file(1)
    assert file(1) != file(2)


@pytest.mark.parametrize(("answer", "unanswered"), [("#### 42", 0), (LOST, 4)])
def test_samples_are_counted_for_the_job_also_where_all_are_lost(answer: Answer | str, unanswered: int) -> None:
    result = play(ROLLOUT, Item(0, "item-0", GSM8K), options(), lambda request: answer, lambda want: Scored(1.0))
    assert result.counters == {"samples": 4, "unanswered": unanswered, "reward_errors": 0}


def test_a_prompt_without_any_answer_fails_and_has_no_text() -> None:
    results, report = run([GSM8K], scripted(LOST))
    (item,) = results.ended
    assert (item.state, item.error, item.result["text"]) == (
        "failed",
        {"code": "no_answer", "message": "It ended."},
        None,
    )
    assert table_of(results)["responses"].to_pylist() == [[]]
    assert table_of(results)["unanswered"].to_pylist() == [4]
    assert (report.metrics["mean@4"], report.metrics["no_answer"], report.metrics["unanswered"]) == (0.0, 1.0, 4)


def test_the_result_has_the_text_of_the_best_sample() -> None:
    results, _ = run([GSM8K], scripted("#### 7", "#### 42", "#### 42 "))
    assert results.ended[0].result["text"] == "#### 42"


def test_the_metrics_are_verls_by_data_source_and_over_all() -> None:
    other = GSM8K | {"data_source": "acme/qa"}
    texts = ("#### 42", "#### 7", "#### 42", LOST)
    _, report = run([GSM8K, other, GSM8K], scripted(*texts), reward={"acme/qa": "gsm8k-flexible"})
    expected = verl.metrics([1.0, 0.0, 1.0, 0.0], ["42", "7", "42", None])
    for metrics in (report.metrics, *report.metrics["data_sources"].values()):
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-12)
        assert (metrics["pass@1"], metrics["pass@4"], metrics["majority@4"]) == (0.5, 1.0, 1.0)
    assert report.metrics["data_sources"]["openai/gsm8k"]["prompts"] == 2
    assert (report.metrics["prompts"], report.metrics["samples"], report.metrics["unanswered"]) == (3, 12, 3)
    assert json.loads(json.dumps(report.metrics))


def test_unanswered_samples_can_be_left_out_of_the_metrics() -> None:
    results, report = run([GSM8K], scripted("#### 42", "#### 7", "#### 42", LOST), skip_unanswered=True)
    assert report.metrics["mean@3"] == pytest.approx(2 / 3)
    assert "mean@4" not in report.metrics
    assert [line["score"] for line in results.lines("samples.jsonl")] == [1.0, 0.0, 1.0, None]


def test_pass_at_k_is_unknown_where_scores_are_no_yes_or_no() -> None:
    similar = {
        "type": "text_similarity",
        "evaluation_metric": "fuzzy_match",
        "input": "{{sample.output_text}}",
        "reference": "{{item.reward_model.ground_truth}}",
    }
    _, unknown = run([GSM8K], scripted("42", "421"), reward=similar)
    assert not [name for name in unknown.metrics if name.startswith("pass")]
    assert view(unknown)[0]["title"] == "best@k and worst@k"
    _, known = run([GSM8K], scripted("42", "7"), reward=similar | {"pass_threshold": 0.9})
    assert (known.metrics["pass@1"], known.metrics["acc/mean@4"]) == (0.5, 0.5)


def test_a_reward_that_fails_counts_0_and_harms_its_sample_alone() -> None:
    _, report = run([GSM8K], scripted("42"), reward="regex")
    assert report.metrics["mean@4"] == 1.0
    bad = GSM8K | {"reward_model": {"ground_truth": "(", "style": "rule"}}
    results, report = run([bad, GSM8K], scripted("42"), reward="regex", keep="best")
    assert (report.metrics["mean@4"], report.metrics["reward_errors"]) == (0.5, 4)
    assert results.lines("samples.jsonl")[0]["error"]["code"] == "reward_error"
    assert len(results.lines("best.jsonl")) == 1


def test_a_threshold_asks_in_waves_until_a_sample_reaches_it() -> None:
    requests: list[str] = []

    def answer(item: Item, request: Request) -> str:
        requests.append(request.custom_id(item))
        return "#### 42" if item.number == 0 and len(requests) > 3 else "#### 7"

    results, report = run([GSM8K, GSM8K], answer, n=5, wave=2, threshold=1.0)
    assert requests[:4] == ["item-0/sample.1.0", "item-0/sample.1.1", "item-0/sample.2.0", "item-0/sample.2.1"]
    assert [len(item.result["samples"]) for item in results.ended] == [4, 5]
    assert len({sample["seed"] for sample in results.ended[1].result["samples"]}) == 5
    assert report.metrics["solved"] == 0.5
    assert "pass@1" not in report.metrics


def test_extract_is_what_the_reward_reads_and_what_a_sample_predicts() -> None:
    results, _ = run([GSM8K], scripted(r"So \boxed{42}.", "none"), reward="regex", extract="boxed")
    assert [line["score"] for line in results.lines("samples.jsonl")] == [1.0, 0.0, 1.0, 0.0]
    assert [line["pred"] for line in results.lines("samples.jsonl")] == ["42", None, "42", None]


def test_the_page_shows_the_curve_the_right_samples_the_rewards_and_the_sources() -> None:
    _, report = run([GSM8K] * 3, scripted("#### 42", "#### 7", "#### 7", "#### 7"))
    curve, correct, rewards, sources = view(report)
    assert (curve["x"], [line["name"] for line in curve["series"]]) == ([1, 2, 4], ["pass@k", "pass^k"])
    assert curve["series"][0]["y"] == [0.25, 0.5, 1.0]
    assert len(curve["series"][0]["low"]) == 3
    assert (correct["labels"], correct["values"]) == (["0", "1", "2", "3", "4"], [0, 3, 0, 0, 0])
    assert (rewards["labels"], rewards["values"]) == (["0", "1"], [9, 3])
    assert sources["rows"][0][:3] == ["openai/gsm8k", 3, 12]


def test_large_numbers_of_samples_have_few_bars() -> None:
    _, report = run([GSM8K], scripted("#### 42"), n=100)
    correct = next(block for block in view(report) if "right samples" in block["title"])
    assert len(correct["labels"]) == len(correct["values"]) <= 33
    assert correct["labels"][-1] == "100"
    assert sum(correct["values"]) == 1


def test_the_documents_show_every_option_with_its_default() -> None:
    section = (ROOT / "docs/recipes.md").read_text().split("\n## rollout\n")[1].split("### Its files")[0]
    shown = re.findall(r"^\| `(\w+)` \| (?:`(.*?)`)? ?\|", section, re.MULTILINE)
    own = {name: field for name, field in Rollout.model_fields.items() if name not in Options.model_fields}
    defaults = {
        name: "" if field.is_required() or name == "sampling" or field.default is None else field.default
        for name, field in own.items()
    }
    assert dict(shown) == {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in defaults.items()
    }


LABEL = {
    "type": "label_model",
    "model": "judge",
    "input": [{"role": "user", "content": "{{item.prompt}} {{sample.output_text}}: right?"}],
    "labels": ["right", "wrong"],
    "passing_labels": ["right"],
}


def test_a_grader_that_is_a_model_is_asked_in_a_stage_of_its_own_and_is_no_judgement() -> None:
    asked = []

    def answer(item: Item, request: Request) -> Answer | str:
        if request.stage == "sample":
            return ["42", "41"][request.sample % 2]
        asked.append(request)
        return "right" if "42:" in request.body["messages"][0]["content"] else "wrong"

    results, report = run([{"prompt": "6 * 7?"}], answer, reward=LABEL)
    assert [request.body["messages"][0]["content"] for request in asked] == [
        f"6 * 7? {text}: right?" for text in ("42", "41") * 2
    ]
    assert {(request.model, request.body["temperature"], request.stage) for request in asked} == {("judge", 0, "grade")}
    assert asked[0].structure == {"choice": ["right", "wrong"]}
    assert table_of(results)["scores"].to_pylist() == [[1.0, 0.0, 1.0, 0.0]]
    assert report.metrics["pass@1"] == 0.5
    chosen = options(reward=LABEL, extract="last_number")
    assert [stage.name for stage in ROLLOUT.stages_of(chosen)] == ["sample", "grade"]
    assert chosen.judging() == {"keep", "skip_unanswered"}
    assert ROLLOUT.probe is not None and len(ROLLOUT.probe(chosen)) == 2


def test_a_sample_that_a_grading_model_cannot_grade_counts_0() -> None:
    def answer(item: Item, request: Request) -> Answer | str:
        if request.stage == "sample":
            return ['{"answer": 42}', "no JSON"][request.sample % 2]
        return "right" if request.sample == 0 else LOST

    reads = LABEL | {"input": [{"role": "user", "content": "{{sample.output_json.answer}}"}]}
    results, report = run([{"prompt": "6 * 7?"}], answer, reward=reads)
    assert table_of(results)["scores"].to_pylist() == [[1.0, 0.0, 0.0, 0.0]]
    assert report.metrics["reward_errors"] == 1


def test_a_threshold_may_be_that_of_a_grading_model() -> None:
    def answer(item: Item, request: Request) -> str:
        return "42" if request.stage == "sample" else ("right" if request.visit == 2 else "wrong")

    results, _ = run([{"prompt": "6 * 7?"}], answer, reward=LABEL, threshold=1, wave=1)
    assert table_of(results)["scores"].to_pylist() == [[0.0, 1.0]]
