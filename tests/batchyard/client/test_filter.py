"""`batchyard.filter` and its command against a running stack: the rows with a yes, with and without a cascade."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import batchyard
from batchyard.client.asking import AnswerWarning
from batchyard.errors import ConfigurationError
from tests.support.stacks import RunningStack
from tests.support.terminal import batchyard as command

ROWS = 400
QUESTION = "Is this about billing? {text}"
CASCADE: dict[str, Any] = {"model": "echo", "cascade": "other", "precision": 0.9, "recall": 0.8}


@pytest.fixture(autouse=True)
def server(stack: RunningStack, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The settings by which calls and commands find the shared stack."""
    settings = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return settings


def tickets() -> list[dict[str, Any]]:
    """Return rows with planted answers: `other` is wrong where its probability is low, and only there."""
    draw, made = random.Random(3), []
    for number in range(ROWS):
        large, p = draw.choice(["yes", "no"]), round(draw.uniform(0.5, 0.999), 3)
        small = large if p > 0.65 else draw.choice(["yes", "no"])
        text = f"Ticket {number} <other {p}>{small}</other> <echo 1>{large}</echo>"
        made.append({"n": str(number), "text": text, "large": large})
    return made


def reached(kept: list[Any]) -> bool:
    """True if rows with these numbers reach the targets of CASCADE."""
    wanted = {row["n"] for row in tickets() if row["large"] == "yes"}
    right = len(wanted & set(kept))
    return right >= 0.9 * len(kept) and right >= 0.8 * len(wanted)


def test_a_filter_keeps_the_rows_to_which_the_model_says_yes() -> None:
    table = pd.DataFrame(
        {"text": [f"<echo 0.7>{answer}</echo>" for answer in ("yes", "no", "Yes.", "maybe")] + [None]},
        index=[5, 4, 3, 2, 1],
    )
    with pytest.warns(AnswerWarning, match="2 of 5 rows have no answer"):
        kept = batchyard.filter(table, QUESTION, model="echo", progress=False)
    assert kept.index.tolist() == [5, 3] and list(kept.columns) == ["text"]
    details = batchyard.filter(table, QUESTION, model="echo", details=True, progress=False)
    assert list(details.columns) == ["answer", "answered_by", "confidence", "error", "tokens"]
    assert details["answer"].tolist()[:3] == ["yes", "no", "yes"]
    assert details["error"].tolist()[3:] == ["the answer 'maybe' is none of the labels", "column text is empty"]


def test_a_smaller_model_labels_the_rows_of_which_it_is_sure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, server: dict[str, str]
) -> None:
    rows = [*tickets(), {"n": "none", "text": None}]
    how: dict[str, Any] = {"labels": ["yes", "{no}", "no"], "model": "echo", "cascade": "other", "agree": 0.9}
    labels = batchyard.classify(rows, "{text}", truth="large", **how)
    said = capsys.readouterr().err
    assert "cascade: other answered" in said and "right by the known answers" in said
    assert set(labels[:-1]) == {"yes", "no"} and labels[-1] is None
    equal = sum(label == row.get("large") for label, row in zip(labels[:-1], rows, strict=False))
    assert equal >= 0.9 * ROWS
    source, output = tmp_path / "rows.csv", tmp_path / "labels.jsonl"
    pd.DataFrame(rows).to_csv(source, index=False)
    options = ["--cascade", "other", "--agree", "0.9", "-l", "yes", "-l", "{no}", "-l", "no", "-m", "echo"]
    command("classify", str(source), "-t", "{text}", *options, "-o", str(output), folder=tmp_path, **server)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert {line["answered_by"] for line in lines} == {"other", "echo", None}
    assert [line["label"] for line in lines] == labels, "both have the seed of their text"
    with pytest.raises(ConfigurationError, match="pass labels, and leave out by"):
        batchyard.classify(rows, "{text}", **how | {"labels": None})


def test_a_smaller_model_decides_the_rows_of_which_it_is_sure(
    stack: RunningStack, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*tickets(), {"n": "none", "text": None}]
    kept = batchyard.filter(rows, QUESTION, **CASCADE)
    assert [row for row in rows if row in kept] == kept and reached([row["n"] for row in kept])
    said = capsys.readouterr().err
    details = batchyard.filter(rows, QUESTION, details=True, **CASCADE)
    assert "taking up job" in capsys.readouterr().err, "nothing is asked twice"
    by_small = sum(row["answered_by"] == "other" for row in details)
    assert f"cascade: other answered {by_small} of {ROWS} rows (simulated)" in said and by_small > 50
    assert list(details[0]) == ["answer", "answered_by", "confidence", "error", "tokens"]
    assert [row for row, one in zip(rows, details, strict=True) if one["answer"] == "yes"] == kept
    assert details[-1]["answer"] is None and details[-1]["error"] == "column text is empty"
    params = {"recipe": "cascade", "limit": 1}
    (job,) = stack.client.get("/jobs", cast_to=object, options={"params": params})["data"]  # type: ignore[index]
    metrics = job["batchyard"]["metrics"]
    assert (metrics["precision"], metrics["recall"], metrics["confidence"]) == (0.9, 0.8, 0.95)
    assert metrics["certified"] and (metrics["wanted"], metrics["proxy"]) == (len(kept), by_small)
    assert 0 < metrics["large_share"] < 1 and metrics["audit"]["intervals"].keys() == {"mean", "precision", "recall"}


def test_known_answers_and_scores_of_a_column_reach_the_job(
    server: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row | {"p": 0.9 if row["large"] == "yes" else 0.1} for row in tickets()]
    kept = batchyard.filter(rows, QUESTION, **CASCADE | {"cascade": "mine"}, scores="p", truth="large", progress=False)
    assert reached([row["n"] for row in kept])
    said = capsys.readouterr().err
    assert "mine answered" in said
    assert "right by the known answers: all 100.0% of 400, proxy 100.0% of 400, large 100.0% of" in said


def test_too_few_rows_are_all_asked_of_the_large_model_and_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    rows = tickets()[:20]
    assert batchyard.filter(rows, QUESTION, **CASCADE) == [row for row in rows if row["large"] == "yes"]
    said = capsys.readouterr().err
    assert "cascade: The large model was asked about every row: too few rows (20)" in said


def test_a_file_is_filtered_in_the_terminal(server: dict[str, str], tmp_path: Path) -> None:
    with (tmp_path / "in.csv").open("w", newline="") as text:
        writer = csv.DictWriter(text, ["n", "text", "large"])
        writer.writeheader()
        writer.writerows(tickets())
    targets = ("--cascade", "other", "--precision", "0.9", "--recall", "0.8")
    arguments = ("in.csv", "-t", QUESTION, "-m", "echo", *targets)
    ended = command("filter", *arguments, "-o", "out.csv", folder=tmp_path, **server)
    assert ended.returncode == 0, ended.stderr
    with (tmp_path / "out.csv").open(newline="") as text:
        kept = list(csv.DictReader(text))
    assert list(kept[0]) == ["n", "text", "large", "answer", "answered_by", "confidence", "error", "tokens"]
    assert {row["answer"] for row in kept} == {"yes"} and {row["answered_by"] for row in kept} == {"echo", "other"}
    assert reached([row["n"] for row in kept])
    assert f"{ROWS} of {ROWS} rows answered, {len(kept)} kept (simulated): out.csv" in ended.stdout
    assert "cascade: other answered" in ended.stderr
    ended = command("filter", *arguments, "-o", "out.parquet", "--json", folder=tmp_path, **server)
    assert pq.read_table(tmp_path / "out.parquet").column("n").to_pylist() == [row["n"] for row in kept]
    assert json.loads(ended.stdout)["kept"] == len(kept)


def test_a_file_without_a_yes_keeps_its_columns_and_rows_that_fail_are_told(
    server: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("text\n<echo 1>no</echo>\n<echo 1>maybe</echo>\n")
    ended = command("filter", "in.csv", "-t", "{text}", "-m", "echo", "-o", "out.csv", folder=tmp_path, **server)
    assert (tmp_path / "out.csv").read_text() == "text,answer,answered_by,confidence,error,tokens\n"
    assert ended.returncode == 1 and "1 of 2 rows failed; the output lacks them" in ended.stderr
    assert "1 without an answer: the answer 'maybe' is none of the labels" in ended.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"precision": 0.9}, "precision needs a cascade: name the small model with cascade="),
        ({"cascade": "other", "agree": 0.9}, "agree is an option of map and classify; leave it out here"),
        ({"cascade": "other", "recall": 1.5}, "recall=1.5: pass a share between 0 and 1, such as 0.95"),
        ({"cascade": "other", "confidence": 1}, "confidence=1: pass a share"),
        ({"scores": "text"}, "scores needs a cascade"),
        ({"cascade": "other", "truth": "txt"}, "truth: no column 'txt'"),
        ({"cascade": "othr"}, "does not serve 'othr'; did you mean other"),
        ({"cascade": "other,echo"}, "echo is named twice; name smaller models than echo, each once"),
        ({"cascade": "vectors,vectors"}, "vectors is named twice; name smaller models than echo, each once"),
    ],
)
def test_a_filter_that_cannot_be_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        batchyard.filter([{"text": "a"}], "{text}", model="echo", **options)


@pytest.mark.parametrize(
    ("verb", "options", "reason"),
    [
        ("filter", ("--cascade", "other", "--recall", "95"), "recall=95.0: pass a share between 0 and 1"),
        ("filter", ("--recall", "0.9"), "recall needs a cascade: name the small model with --cascade"),
        ("map", ("--confidence", "0.9"), "confidence needs a cascade: name the small model with --cascade"),
    ],
)
def test_the_terminal_refuses_targets_before_it_starts_a_server(
    tmp_path: Path, verb: str, options: tuple[str, ...], reason: str
) -> None:
    (tmp_path / "in.csv").write_text("text\na\n")
    nobody = {"BATCHYARD_URL": "http://127.0.0.1:1"}
    ended = command(verb, "in.csv", "-t", "{text}", "-m", "echo", *options, "-o", "out.csv", folder=tmp_path, **nobody)
    assert ended.returncode == 2 and reason in ended.stderr
