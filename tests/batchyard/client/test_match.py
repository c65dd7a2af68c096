"""`batchyard.match` and its command: candidates, the sample of the other pairs, and what both say of all pairs."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import batchyard
from batchyard.client import match as matching
from batchyard.client.asking import AnswerWarning
from batchyard.client.match import Matching, candidates, report_of, sample_others
from batchyard.endpoints.catalog import CHAT, EMBEDDINGS
from batchyard.errors import ConfigurationError
from batchyard.models import ModelSpec
from inference.engine import EngineAnswer
from inference.engines.echo import Echo
from tests.support.engine_server import EngineServer
from tests.support.stacks import RunningStack
from tests.support.terminal import batchyard as command

SAME = "Same company? {left.name} / {right.name}"


class Companies(Echo):
    """Vectors by a name's first word, and a yes if those of two names are equal."""

    async def answer(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer:
        if endpoint == EMBEDDINGS.path:
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
            data = [{"index": place, "embedding": self.vector(text)} for place, text in enumerate(texts)]
            return EngineAnswer(200, {"data": data, "usage": {"prompt_tokens": len(texts)}})
        left, right = body["messages"][-1]["content"].removeprefix("Same company? ").split(" / ")
        text = "yes" if left.split()[0] == right.split()[0] else "no"
        message = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop", "index": 0}
        return EngineAnswer(200, {"choices": [message], "usage": {"prompt_tokens": 5, "completion_tokens": 1}})

    def vector(self, text: str) -> list[float]:
        """Return a vector that hides who is meant where a name says so."""
        draw = np.random.default_rng([*(text if "hidden" in text else text.split()[0]).encode()])
        return [float(value) for value in draw.normal(size=16)]


@pytest.fixture
def server() -> Any:
    specs = (("vectors", EMBEDDINGS), ("large", CHAT))
    return EngineServer(
        *(Companies(ModelSpec(name=name, engine="echo", endpoints=(entry.path,)), 60) for name, entry in specs)
    )


def tables(hidden: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return 20 and 25 companies, of which 15 are in both; vectors hide so many of these."""
    left = [f"company{number} Ltd" for number in range(20)]
    right = [f"company{number} {'hidden' if number - 5 < hidden else 'GmbH'}" for number in range(5, 30)]
    return pd.DataFrame({"name": left, "id": range(20)}, index=range(100, 120)), pd.DataFrame({"name": right})


def figures(server: Any, hidden: int, recall: float, sample: int) -> Mapping[str, Any]:
    """Return the report on tables with one candidate a row."""
    how = {"server": server, "progress": False, "window": "24h", "again": False}
    question = Matching(SAME, "large", None, {"recall": recall}, how)
    return matching.matched(*tables(hidden), question, embed=None, top=1, sample=sample, seed=1).report


def test_the_pairs_with_a_yes_are_returned_and_most_pairs_are_never_asked(
    server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right = tables()
    left.loc[100, "name"] = None
    how: dict[str, Any] = {"model": "large", "sample": 50, "top": 2, "server": server}
    with pytest.warns(AnswerWarning, match="column name is empty"):
        found = batchyard.match(left, right, SAME, **how, progress=False)
    assert list(found.columns) == ["left.name", "left.id", "right.name", "similarity", "answered_by", "confidence"]
    assert found["left.id"].tolist() == [*range(5, 20)], "in the order of the rows"
    assert found["right.name"].tolist() == [f"company{number} GmbH" for number in range(5, 20)]
    assert found["similarity"].tolist() == [1.0] * 15 and set(found["answered_by"]) == {"large"}
    asked = sum(batch["request_counts"]["total"] for batch in server.made[2:])
    said = capsys.readouterr().err
    assert asked < 140 and f"was asked about {asked} pairs" in said
    assert "1 rows of the left table have no vector, so no pairs" in said
    assert "15 matches; of the candidates by nearness, the nearest first: 15" in said
    assert "matches are too rare for this sample" in said
    with pytest.warns(AnswerWarning):
        details = batchyard.match(left, right, SAME, **how, details=True)
    assert len(details) == asked and sum(details["drawn"]) == 50 and sum(details["answer"] == "yes") == 15
    assert "taking up batch" in capsys.readouterr().err and len(server.made) == 4, "nothing is asked twice"


def test_matches_outside_the_candidates_are_found_in_the_sample_and_bound_the_recall(server: Any) -> None:
    def ask(sample: int, recall: float) -> Mapping[str, Any]:
        return figures(server, 8, recall, sample)

    report = ask(500, 0.9)
    assert (report["pairs"], report["asked"], report["matches"]) == (500, 500, 15), "the sample is all of them"
    assert report["found"] == report["at_most"] > 3 and report["recall_at_least"] == 1 and report["certified"]
    report = ask(200, 0.9)
    missing = 15 - report["matches"] + report["found"]
    assert not report["certified"] and report["is_poor"] and report["at_most"] >= missing
    assert report["recall_at_least"] <= report["matches"] / 15
    assert ask(200, 0.2)["certified"]


def test_the_report_says_how_large_a_sample_has_to_be(server: Any) -> None:
    report = figures(server, 0, 0.8, 0)
    assert not report["certified"] and 0 < report["needed"] < 470
    enough = figures(server, 0, 0.8, report["needed"])
    assert enough["certified"] and enough["found"] == 0


@pytest.mark.parametrize("block", [1, 50, 1 << 20])
def test_candidates_are_the_nearest_rows_of_either_table(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "BLOCK", block)
    draw = np.random.default_rng(3)
    left, right = (draw.normal(size=(number, 8)).astype(np.float32) for number in (13, 29))
    found, ranks = candidates(left, right, 3)
    products = left @ right.T
    by_left = (-products).argsort(axis=1).argsort(axis=1)
    by_right = (-products).argsort(axis=0).argsort(axis=0)
    nearest = np.minimum(by_left, by_right).ravel()
    assert found.tolist() == np.flatnonzero(nearest < 3).tolist()
    assert ranks.tolist() == nearest[nearest < 3].tolist()
    assert len(candidates(left, right, 100)[0]) == 13 * 29


def test_the_sample_is_drawn_from_all_pairs_that_are_no_candidates() -> None:
    draw = random.Random(2)
    for total in (1, 10, 200):
        nearest = np.array(sorted(draw.sample(range(total), total // 3)), np.int64)
        assert sample_others(nearest, total, total, 0).tolist() == sorted({*range(total)} - {*nearest.tolist()})
    counts = np.zeros(12, int)
    for seed in range(2000):
        counts[sample_others(np.array([0, 3, 4, 11]), 12, 2, seed)] += 1
    assert counts[[0, 3, 4, 11]].sum() == 0
    assert all(400 < count < 600 for count in np.delete(counts, [0, 3, 4, 11])), "each as often as any other"


@pytest.mark.long
@pytest.mark.parametrize("cascade", [None, "small"])
@pytest.mark.parametrize(("missed", "sample"), [(2, 300), (10, 300), (40, 1000), (40, 50)])
def test_the_certified_recall_is_missed_no_more_often_than_promised(
    cascade: str | None, missed: int, sample: int
) -> None:
    """The small model finds as few matches as it may, and is as often wrong."""
    question = Matching("", "large", cascade, {"recall": 0.9, "precision": 0.9, "confidence": 0.9}, {})
    total, runs = 5000, 400
    right = [("yes", "large")] * 30 + [("yes", cascade or "large")] * 65
    wrong = [("yes", "small")] * 10 + [("no", "small")] * 5 if cascade else [("no", "large")] * 15
    among = [{"answer": answer, "answered_by": by} for answer, by in right + wrong]
    lost = 5 if cascade else 0
    ranks = np.zeros(len(among), int)
    broken = 0
    for seed in range(runs):
        places = random.Random(seed).sample(range(total - len(among)), sample)
        drawn = [{"answer": "yes" if place < missed else "no", "answered_by": "large"} for place in places]
        report = report_of(question, total, ranks, [*among, *drawn])
        recall = (95 + report["found"]) / (95 + lost + missed)
        broken += report["recall_at_least"] > recall + 1e-9
        assert report["at_most"] >= report["found"]
    allowed = 0.05 if cascade else 0.1
    assert broken / runs <= allowed + 2 * math.sqrt(allowed * (1 - allowed) / runs)


def test_a_pair_without_an_answer_may_be_a_lost_match() -> None:
    question = Matching("", "large", None, {"recall": 0.9, "confidence": 0.9}, {})
    yes, none = {"answer": "yes", "answered_by": "large"}, {"answer": None, "answered_by": None}
    no = yes | {"answer": "no"}
    for among, drawn, recall in (
        ([yes] * 9, [no], 1.0),
        ([yes] * 9 + [none], [no], 0.9),
        ([yes] * 9, [none], 0.9),
    ):
        report = report_of(question, len(among) + 1, np.zeros(len(among), int), [*among, *drawn])
        assert report["recall_at_least"] == pytest.approx(recall)
        assert report["certified"] == (recall >= 0.9)
    report = report_of(question, 11, np.zeros(10, int), [*[yes] * 8, none, none, no])
    assert not report["certified"] and not report["can_certify"]


@pytest.mark.parametrize(
    ("template", "options", "reason"),
    [
        ("{left.name} / {right.nme}", {}, "no column 'right.nme'; did you mean 'right.name'"),
        ("{left.name}", {}, "it compares rows of both tables"),
        ("{*}", {}, "neither images nor {\\*} can be matched"),
        (SAME, {"embed": "large"}, "model large does not answer on /v1/embeddings"),
        (SAME, {"model": "vectors"}, "model vectors does not answer on /v1/chat/completions"),
        (SAME, {"cascade": "vectors", "embed": "other"}, "embed: vectors of the cascade is an embedding model"),
        (SAME, {"recall": 1.0}, "recall=1.0: pass a share"),
        (SAME, {"precision": 0.9}, "precision needs a cascade"),
        (SAME, {"top": 0}, "top is 1 at least"),
    ],
)
def test_tables_that_cannot_be_matched_are_refused(
    server: Any, template: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        batchyard.match(*tables(), template, **{"model": "large", "server": server, "progress": False, **options})
    assert server.made == []


REVIEWS = "Praise of both? {left.text} / {right.text} <echo 1{left.k}{right.k}>yes</echo><echo 1>no</echo>"
"""The large model says yes if both rows have the two halves of a probability."""


def reviews(side: str) -> list[dict[str, str]]:
    """Return praise, with what makes a yes, and as many tasks, which differ from table to table."""
    things = ["food", "service", "room", "staff", "battery", "screen", "sound", "delivery", "price", "design"]
    praise = [f"The {thing} was {word}." for thing in things for word in ("great", "perfect")]
    tasks = [f"What is {n} + 5?" if side == "left" else f'Reverse the word "b{n}c".' for n in range(10, 30)]
    half = {"left": ".", "right": "0"}[side]
    return [{"text": text, "k": half} for text in praise] + [{"text": text, "k": "x"} for text in tasks]


@pytest.fixture
def settings(stack: RunningStack, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The settings by which calls and commands find the shared stack."""
    settings = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return settings


def test_similarities_decide_the_candidates_of_which_they_are_sure_enough(
    settings: dict[str, str], tmp_path: Path
) -> None:
    for side in ("left", "right"):
        with (tmp_path / f"{side}.csv").open("w", newline="") as text:
            writer = csv.DictWriter(text, ["text", "k"])
            writer.writeheader()
            writer.writerows(reviews(side))
    arguments = ("left.csv", "right.csv", "-t", REVIEWS, "-m", "echo", "--cascade", "nano-embed", "--top", "20")
    targets = ("--recall", "0.8", "--precision", "0.8", "--sample", "100")
    ended = command("match", *arguments, *targets, "-o", "out.csv", "--json", folder=tmp_path, **settings)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    with (tmp_path / "out.csv").open(newline="") as text:
        found = list(csv.DictReader(text))
    right = sum(row["left.k"] == "." and row["right.k"] == "0" for row in found)
    assert len(found) == report["kept"] == report["matches"] and right >= 0.8 * len(found)
    assert report["recall_at_least"] <= right / 400 and report["pairs"] == 1600
    assert report["asked"] < report["candidates"], "the similarities have decided some"
    assert {row["answered_by"] for row in found} == {"echo", "nano-embed"}
    assert list(found[0]) == [*(f"{side}.{name}" for side in ("left", "right") for name in ("text", "k")),
                              "similarity", "answered_by", "confidence"]  # fmt: skip
    assert "match: " in ended.stderr and "cascade: nano-embed answered" in ended.stderr


def test_files_without_a_match_give_a_file_with_the_columns(settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\n<echo 1>no</echo>\n")
    arguments = ("a.csv", "a.csv", "-t", "{left.text}{right.text}", "-m", "echo", "--embed", "vectors")
    ended = command("match", *arguments, "-o", "out.csv", folder=tmp_path, **settings)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out.csv").read_text() == "left.text,right.text,similarity,answered_by,confidence\n"
    assert "1 of 1 rows answered, 0 kept (simulated): out.csv" in ended.stdout
