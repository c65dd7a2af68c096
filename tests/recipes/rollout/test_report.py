"""The artifacts of a rollout have what trainers read, sample by sample."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchyard.recipes import Answer, Item
from batchyard.recipes.program import Request
from recipes.rollout import report
from tests.recipes.rollout.made import GSM8K, LOST, QUESTION, ROLLOUT, options, run, scripted, table_of
from tests.support.played import PlayedResults, finished, played, played_item


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
        "reasonings",
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
        "reasonings": [None] * 4,
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
        "sample": 1,
        "seed": Item(0, "item-0", GSM8K).seed("sample", 0),
        "data_source": "openai/gsm8k",
        "acc": 1.0,
        "pred": "42",
        "finish_reason": None,
        "error": None,
        "reasoning": None,
        "tool_calls": None,
    }
    assert [line["output"] for line in lines] == ["#### 42", None, "no number", "#### 7"]
    assert [line["score"] for line in lines] == [1.0, 0.0, 0.0, 0.0]
    assert [line["pred"] for line in lines] == ["42", None, None, "7"]
    assert lines[1]["error"] == {"code": "engine_died", "message": "It ended."}


def test_an_item_that_never_began_has_lost_all_its_samples() -> None:
    results = PlayedResults([played_item(0, "item-0", GSM8K, "expired", {"text": None}, {"code": "batch_expired"})])
    report = finished(ROLLOUT, results, options())
    assert report.metrics["unanswered"] == 4
    assert [line["error"] for line in results.lines("samples.jsonl")] == [{"code": "batch_expired"}] * 4


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


def test_an_input_without_rows_leaves_a_file_without_rows() -> None:
    results = PlayedResults([])
    results.tables = lambda: iter([])  # type: ignore[method-assign]
    finished(ROLLOUT, results, options())
    assert table_of(results).num_rows == 0
    assert "responses" in table_of(results).column_names


def test_skipped_samples_have_a_line_without_a_score() -> None:
    results, _ = run([GSM8K], scripted("#### 42", LOST), skip_unanswered=True)
    assert [line["score"] for line in results.lines("samples.jsonl")] == [1.0, None, 1.0, None]
    assert [line["acc"] for line in results.lines("samples.jsonl")] == [1.0, None, 1.0, None]


def test_a_prompt_that_is_longer_than_a_block_is_written_with_the_others_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "BLOCK_BYTES", 10)
    rows = [GSM8K | {"extra_info": {"index": index, "split": "train"}} for index in range(5)]
    results, _ = run(rows, scripted("#### 42"))
    assert [row["index"] for row in table_of(results)["extra_info"].to_pylist()] == list(range(5))
    assert pq.ParquetFile(io.BytesIO(results.artifacts["rollouts.parquet"])).num_row_groups == 5


def test_texts_of_a_content_are_joined_and_other_parts_are_written_as_json() -> None:
    texts = [{"type": "text", "text": "6 * 7?"}, {"type": "text", "text": "Be brief."}]
    image = [{"type": "image_url", "image_url": {"url": "data:x"}}]
    rows = [GSM8K | {"prompt": [{"role": "user", "content": parts}]} for parts in (texts, image)]
    results, _ = run(rows, scripted("#### 42"))
    joined, as_json = "6 * 7?\nBe brief.", '[{"type":"image_url","image_url":{"url":"data:x"}}]'
    assert {line["input"] for line in results.lines("samples.jsonl")} == {joined, as_json}


def test_a_sample_without_a_text_is_unanswered_with_the_reason_and_what_it_has_instead() -> None:
    thinking = Answer(
        ok=False,
        error={"code": "reasoning_only", "message": "The answer has reasoning only and no text."},
        finish_reason="length",
        extra={"reasoning": "let me see"},
    )
    call = Answer(ok=True, finish_reason="tool_calls", extra={"tool_calls": [{"id": "c1"}]})
    answered = Answer(ok=True, text="#### 42", extra={"reasoning": "6 times 7"})
    results, report = run([GSM8K], scripted(answered, thinking, call, "#### 7"))
    assert report.metrics["unanswered"] == 2
    lines = results.lines("samples.jsonl")
    assert [line["output"] for line in lines] == ["#### 42", None, None, "#### 7"]
    assert [(line["error"] or {}).get("code") for line in lines] == [None, "reasoning_only", "tool_call", None]
    assert [line["reasoning"] for line in lines] == ["6 times 7", "let me see", None, None]
    assert (lines[1]["finish_reason"], lines[2]["tool_calls"]) == ("length", [{"id": "c1"}])
    (row,) = table_of(results).to_pylist()
    assert (row["unanswered"], row["responses"], row["reasonings"]) == (2, ["#### 42", "#### 7"], ["6 times 7", None])


def test_messages_are_asked_and_kept_as_they_are() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Graz"}'}}
    talk = [
        {"role": "user", "content": "Weather in Graz?", "name": "ann"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12 degrees, rain"},
        {"role": "assistant", "content": None, "refusal": "I will not."},
        {"role": "user", "content": "Please."},
    ]
    asked: list[Any] = []

    def answer(item: Item, request: Any) -> str:
        asked.append(request.body["messages"])
        return "rain"

    terms: dict[str, Any] = {"reward": "exact", "ground_truth": "answer", "n": 2, "keep": "best"}
    results, _ = run([{"messages": talk, "answer": "rain"}], answer, **terms)
    assert asked == [talk, talk]
    (row,) = table_of(results).to_pylist()
    kept = [{name: value for name, value in message.items() if value is not None} for message in row["prompt"]]
    assert kept == [{name: value for name, value in message.items() if value is not None} for message in talk]
    assert results.lines("best.jsonl")[0]["prompt"] == talk
    assert "null" not in results.lines("samples.jsonl")[0]["input"]
