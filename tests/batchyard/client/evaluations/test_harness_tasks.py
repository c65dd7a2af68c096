"""Task files of lm-evaluation-harness over local data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchyard.errors import ConfigurationError
from tests.batchyard.client.evaluations.made import checked, lines, read

GSM8K = r"""
task: sums
dataset_path: json
dataset_kwargs:
  data_files: {train: train.jsonl, test: test.jsonl}
output_type: generate_until
training_split: train
test_split: test
fewshot_split: train
num_fewshot: 2
description: "Solve it.\n\n"
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["Question:"], do_sample: false, temperature: 0.0, max_gen_toks: 64}
metric_list:
  - metric: exact_match
    aggregation: mean
    ignore_case: true
    regexes_to_ignore: [",", "(?s).*#### "]
filter_list:
  - name: strict
    filter:
      - {function: regex, regex_pattern: "#### (\\-?[0-9\\.\\,]+)"}
      - {function: take_first}
  - name: flexible
    filter:
      - {function: regex, group_select: -1, regex_pattern: "(-?[0-9.,]+)"}
metadata: {version: 3.0}
"""
SCIENCE = {
    "task": "science",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "science.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}\nAnswer:",
    "doc_to_choice": "choices",
    "doc_to_target": "{{answer}}",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines(tmp_path / "train.jsonl", [{"question": f"{n} + {n}?", "answer": f"It is #### {2 * n}"} for n in range(5)])
    lines(tmp_path / "test.jsonl", [{"question": "7 + 7?", "answer": "Fourteen #### 14"}])
    lines(
        tmp_path / "science.jsonl",
        [{"question": "The sky is?", "choices": ["blue", "green"], "answer": 0, "topic": "sky"},
         {"question": "Grass is?", "choices": ["blue", "green"], "answer": "green", "topic": "earth"}],
    )  # fmt: skip
    return tmp_path


def test_prompts_are_filled_with_description_and_examples_drawn_once(folder: Path) -> None:
    kind, evaluation, (row,) = read(folder, GSM8K)
    assert (kind, evaluation.name) == ("lm-evaluation-harness", "sums")
    assert row["prompt"].startswith("Solve it.\n\nQuestion: ")
    assert row["prompt"].count("Question:") == 3 and row["prompt"].count("Answer: It is #### ") == 2
    assert row["prompt"].endswith("\n\nQuestion: 7 + 7?\nAnswer:")
    assert row["target"] == "Fourteen #### 14"
    assert read(folder, GSM8K)[2] == [row]


def test_metrics_filters_and_sampling_become_options_that_pass_the_recipes_checks(folder: Path) -> None:
    options = checked(read(folder, GSM8K)[1])
    assert options.labels == ["exact_match,strict", "exact_match,flexible"]
    assert [metric.extract for metric in options.metrics] == [
        r"regex:#### (\-?[0-9\.\,]+)",
        "last_regex:(-?[0-9.,]+)",
    ]
    assert options.metrics[0].ignore == ["case", "regex:,", "regex:(?s).*#### "]
    assert (options.sampling.temperature, options.sampling.max_tokens, options.sampling.stop) == (0, 64, ["Question:"])
    assert options.ground_truth == "target"


def test_a_multiple_choice_has_its_choices_behind_the_delimiter(folder: Path) -> None:
    _, evaluation, rows = read(folder, SCIENCE)
    assert [(row["choices"], row["target"]) for row in rows] == [([" blue", " green"], 0), ([" blue", " green"], 1)]
    assert rows[0]["prompt"] == "The sky is?\nAnswer:" and rows[0]["topic"] == "sky"
    assert checked(evaluation).labels == ["acc", "acc_norm"]


def test_a_task_may_include_another(folder: Path) -> None:
    (folder / "base.yaml").write_text(GSM8K)
    _, evaluation, (row,) = read(folder, {"include": "base.yaml", "doc_to_text": "{{question}}", "num_fewshot": 0})
    assert (evaluation.name, row["prompt"]) == ("sums", "Solve it.\n\n7 + 7?")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"output_type": "loglikelihood_rolling"},
            "output_type: 'loglikelihood_rolling' is not read; `batchyard lm-eval`",
        ),
        ({"process_docs": "!function utils.f"}, "process_docs: Python functions are not run here"),
        ({"dataset_path": "openai/gsm8k", "dataset_kwargs": None}, "openai/gsm8k is no file or folder of this machine"),
        ({"metric_list": [{"metric": "chrf"}]}, "metric_list.0: 'chrf' is not supported; available: acc"),
        ({"doc_to_target": "{{nothing}}"}, "doc_to_target, document 1: the template cannot be filled: 'nothing' is"),
        ({"doc_to_choice": ["one"]}, "doc_to_choice, document 1: it gives no list of choices"),
        ({"num_fewshot": 1}, "num_fewshot: examples come from `fewshot_split`, another one than is evaluated"),
        ({"formats": "mcqa"}, "formats: it is not read"),
    ],
)
def test_what_needs_the_harness_itself_is_refused_with_its_place(
    folder: Path, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(folder, {**SCIENCE, **change})
    assert complaint in refused.value.message


def test_a_function_of_python_is_named(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="doc_to_text: Python functions are not run here"):
        read(folder, "task: a\ndataset_path: json\ndoc_to_text: !function utils.text\n")
