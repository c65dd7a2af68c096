"""Recipe rollout: n samples of each prompt, scored, in the files that trainers read."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from batchyard.recipes import Answer, InvalidItem, Item, Options, Recipe, Report, Scored, blocks
from batchyard.recipes.program import Request, play
from recipes import registry
from recipes.measures import verl
from recipes.rollout.options import Rollout
from tests.support.played import PlayedItem, PlayedResults, finished, played
from tests.support.stacks import ROOT

ROLLOUT: Recipe[Any] = registry.load(None).recipe("rollout")
QUESTION = [{"content": "6 * 7?", "role": "user"}]
GSM8K = {
    "data_source": "openai/gsm8k",
    "prompt": QUESTION,
    "ability": "math",
    "reward_model": {"ground_truth": "42", "style": "rule"},
    "extra_info": {"index": 3, "split": "train"},
}
LOST = Answer(ok=False, error={"code": "engine_died", "message": "It ended."}, status_code=500)


def options(**values: Any) -> Rollout:
    chosen = Rollout(**{"model": "mini", "n": 4} | values)
    assert ROLLOUT.check is not None
    ROLLOUT.check(chosen)
    return chosen


def scripted(*texts: str | Answer) -> Any:
    """Answers with these texts by the number of the request, again and again."""
    asked: dict[int, int] = {}

    def answer(item: Item, request: Request) -> Answer | str:
        number = asked[item.number] = asked.get(item.number, -1) + 1
        return texts[number % len(texts)]

    return answer


def run(rows: Sequence[Mapping[str, Any]], answer: Any, **values: Any) -> tuple[PlayedResults, Report]:
    results = played(ROLLOUT, rows, options(**values), answer)
    return results, finished(ROLLOUT, results, options(**values))


def view(report: Report) -> list[Mapping[str, Any]]:
    return blocks.as_json(report.view)


def table_of(results: PlayedResults) -> pa.Table:
    return pq.read_table(io.BytesIO(results.artifacts["rollouts.parquet"]))


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


def test_the_rollouts_have_every_column_of_the_input_in_its_type_and_the_answered_samples() -> None:
    kinds = pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("ground_truth", pa.string()), ("style", pa.string())])),
            ("extra_info", pa.struct([("index", pa.int64()), ("split", pa.string())])),
            ("weight", pa.float16()),
            ("tags", pa.dictionary(pa.int8(), pa.string())),
        ]
    )
    rows = [GSM8K | {"weight": 0.5, "tags": "hard"}, GSM8K | {"weight": 2.0, "tags": "easy"}]
    results = played(ROLLOUT, rows, options(), scripted("#### 42", LOST, "#### 7", "It is 42"))
    arrow = pa.Table.from_arrays(
        [pa.array([row[field.name] for row in rows], field.type) for field in kinds], schema=kinds
    )
    results.tables = lambda: iter([arrow])  # type: ignore[method-assign]
    finished(ROLLOUT, results, options())
    table = table_of(results)
    assert table.schema.remove_metadata().names[: len(kinds)] == kinds.names
    assert table.select(kinds.names).equals(arrow)
    assert table.schema.field("responses").type == pa.list_(pa.string())
    assert table.schema.field("scores").type == pa.list_(pa.float64())
    assert table["responses"].to_pylist() == [["#### 42", "#### 7", "It is 42"]] * 2
    assert table["scores"].to_pylist() == [[1.0, 0.0, 0.0]] * 2
    assert table["unanswered"].to_pylist() == [1, 1]
    assert table.column_names[len(kinds) :] == [
        "responses",
        "scores",
        "finish_reasons",
        "seeds",
        "output_tokens",
        "unanswered",
    ]


def test_what_verl_reads_is_added_to_an_input_without_it() -> None:
    rows = [{"prompt": "Capital of France?", "answer": "Paris"}, {"prompt": "Of Italy?", "answer": "Rome"}]
    terms = {"reward": "exact", "ground_truth": "answer", "system": "Be brief."}
    results, _ = run(rows, scripted("Paris"), **terms)
    first = table_of(results).to_pylist()[1]
    assert first == {
        "prompt": [{"content": "Be brief.", "role": "system"}, {"content": "Of Italy?", "role": "user"}],
        "answer": "Rome",
        "data_source": "unknown",
        "ability": "unknown",
        "reward_model": {"ground_truth": "Rome", "style": "rule"},
        "extra_info": {"index": 1, "split": "unknown"},
        "responses": ["Paris"] * 4,
        "scores": [0.0] * 4,
        "finish_reasons": [None] * 4,
        "seeds": first["seeds"],
        "output_tokens": [0] * 4,
        "unanswered": 0,
    }
    kinds = table_of(results).schema
    assert kinds.field("prompt").type == pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))
    assert [field.name for field in kinds.field("extra_info").type] == ["index", "split"]


def test_samples_have_a_line_each_with_verls_keys() -> None:
    results, _ = run([GSM8K], scripted("#### 42", LOST, "no number", "#### 7"), step=3)
    lines = results.lines("samples.jsonl")
    assert lines[0] == {
        "input": "6 * 7?",
        "output": "#### 42",
        "gts": "42",
        "score": 1.0,
        "step": 3,
        "custom_id": "item-0",
        "sample": 0,
        "seed": Item(0, "item-0", GSM8K).seed("sample", 0),
        "data_source": "openai/gsm8k",
        "acc": 1.0,
        "pred": "42",
        "finish_reason": None,
        "error": None,
    }
    assert [line["output"] for line in lines] == ["#### 42", None, "no number", "#### 7"]
    assert [line["score"] for line in lines] == [1.0, 0.0, 0.0, 0.0]
    assert [line["pred"] for line in lines] == ["42", None, None, "7"]
    assert lines[1]["error"] == {"code": "engine_died", "message": "It ended."}


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


def test_an_item_that_never_began_has_lost_all_its_samples() -> None:
    results = PlayedResults([PlayedItem(0, "item-0", GSM8K, "expired", {"text": None}, {"code": "batch_expired"})])
    report = finished(ROLLOUT, results, options())
    assert report.metrics["unanswered"] == 4
    assert [line["error"] for line in results.lines("samples.jsonl")] == [{"code": "batch_expired"}] * 4


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


def test_pairs_are_the_first_best_and_the_first_worst_where_scores_differ() -> None:
    results, _ = run([GSM8K, GSM8K], scripted("#### 7", "#### 42", LOST, "#### 42 ok"), keep="pairs")
    pair = {
        "prompt": QUESTION,
        "chosen": [{"role": "assistant", "content": "#### 42"}],
        "rejected": [{"role": "assistant", "content": "#### 7"}],
    }
    assert results.lines("preferences.jsonl") == [pair, pair]
    equal, _ = run([GSM8K], scripted("#### 42"), keep="pairs")
    assert equal.lines("preferences.jsonl") == []


def test_best_is_the_first_sample_with_the_highest_score() -> None:
    results, _ = run([GSM8K], scripted("#### 7", "#### 42", "#### 42 ok"), keep="best")
    assert results.lines("best.jsonl") == [{"prompt": QUESTION, "response": "#### 42", "score": 1.0}]
    assert sorted(results.artifacts) == ["best.jsonl", "rollouts.parquet", "samples.jsonl"]


def test_log_probabilities_and_token_ids_are_kept_if_asked_for() -> None:
    bodies: list[Mapping[str, Any]] = []
    tokens = {"content": [{"token": "4", "logprob": -0.5}, {"token": "2", "logprob": -0.25}]}

    def answer(item: Item, request: Request) -> Answer:
        bodies.append(request.body)
        return Answer(ok=True, text="42", extra={"logprobs": tokens, "token_ids": [19, 17]})

    results, _ = run([GSM8K], answer, n=2, logprobs=True, response_ids=True)
    assert (bodies[0]["logprobs"], bodies[0]["return_token_ids"]) == (True, True)
    table = table_of(results)
    assert table["logprobs"].to_pylist() == [[[-0.5, -0.25]] * 2]
    assert table["response_ids"].to_pylist() == [[[19, 17]] * 2]
    assert table.schema.field("response_ids").type == pa.list_(pa.list_(pa.int32()))


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


def test_an_input_without_rows_leaves_a_file_without_rows() -> None:
    results = PlayedResults([])
    results.tables = lambda: iter([])  # type: ignore[method-assign]
    finished(ROLLOUT, results, options())
    assert table_of(results).num_rows == 0
    assert "responses" in table_of(results).column_names


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
