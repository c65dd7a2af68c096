"""The examples of recipes in `examples/` and in the docs work as they are."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator

import pytest

from batchyard import config
from batchyard.recipes import Answer, Check, Checked, Item, Reply, Result
from batchyard.recipes.program import Request, play
from recipes import registry
from recipes.panel.flow import panel
from recipes.panel.options import PanelOptions
from recipes.refine.flow import refine
from recipes.refine.options import Refine
from tests.support.played import finished, played
from tests.support.stacks import ROOT

EXAMPLES = ROOT / "examples"
DOCS = (ROOT / "docs/recipes.md").read_text()


def test_the_panel_of_the_examples_runs_over_its_tasks() -> None:
    schema = config.Schema(PanelOptions.model_json_schema())
    values = config.options(config.resolve(schema, config.files(schema, EXAMPLES / "panel.yaml")))
    options = PanelOptions.model_validate(values)
    assert panel.check is not None
    panel.check(options)
    rows = [json.loads(line) for line in (EXAMPLES / "panel.jsonl").read_text().splitlines()]

    def answer(item: Item, request: Request) -> Answer:
        assert request.body["messages"][-1]["content"] == item.columns["prompt"]
        right = request.sample == item.number % 3  # one of the three agents
        return Answer(ok=True, text=item.columns["answer"] if right else "no idea")

    results = played(panel, rows, options, answer)
    report = finished(panel, results, options)
    assert [item.result["text"] for item in results.ended] == [row["answer"] for row in rows]
    assert [agent["wins"] for agent in report.metrics["agents"].values()] == [len(rows) / 3] * 3
    assert report.metrics["consensus"] == {"mean": 0.0, "n": len(rows)}


def test_the_refine_of_the_examples_asks_the_second_model_for_what_the_first_gets_wrong() -> None:
    schema = config.Schema(Refine.model_json_schema())
    values = config.options(config.resolve(schema, config.files(schema, EXAMPLES / "refine.yaml")))
    options = Refine.model_validate(values)
    assert refine.check is not None
    refine.check(options)
    rows = [json.loads(line) for line in (EXAMPLES / "rollout.jsonl").read_text().splitlines()]
    asked: list[tuple[str, str]] = []

    def answer(item: Item, request: Request) -> str:
        asked.append((request.model, item.custom_id))
        wrong = request.model == "nano" and item.custom_id.startswith("sum")
        return "no idea" if wrong else str(item.columns["answer"])

    results = played(refine, rows, options, answer)
    assert [item.state for item in results.ended] == ["completed"] * len(rows)
    assert [name for model, name in asked if model == "mini"] == [
        row["custom_id"] for row in rows if row["custom_id"].startswith("sum")
    ]


def test_the_recipe_of_the_docs_is_the_file_of_the_examples() -> None:
    (block,) = re.findall(r"```python\n(\"\"\"A recipe of one's own.*?)```", DOCS, re.DOTALL)
    assert block == (EXAMPLES / "recipes/debate.py").read_text()


def test_a_file_in_the_folder_adds_a_recipe_a_reward_and_a_gate() -> None:
    catalogue = registry.load(str(EXAMPLES / "recipes"))
    debate, gate = catalogue.recipe("debate"), catalogue.gate("no-apology")
    texts = iter(["four", "4", "five", "1"])
    item = Item(0, "a", {"prompt": "2 + 2?"})
    options = debate.options.model_validate({"model": "mini", "judge": "nano"})
    result = play(debate, item, options, lambda request: next(texts))
    assert (result.state, result.text, result.values) == ("completed", "4", {"votes": 3})
    assert catalogue.reward("acme")("acme/qa", "I think\n4", "4") == {"score": 1.0, "pred": "4"}
    assert gate("Sorry, no.", item) is not None and gate("No.", item) is None


def test_a_patch_is_mended_until_the_ci_passes_it_or_a_person_has_to_look() -> None:
    patch = registry.load(str(EXAMPLES / "recipes")).recipe("patch")
    item, options = Item(0, "a", {"prompt": "Add 1."}), patch.options.model_validate({"model": "mini"})
    verdicts = [Reply(passed=False, message="test_sum fails"), Reply(passed=True, by="CI"), Reply(passed=False)]
    asked: list[str] = []

    def answer(request: Request) -> str:
        asked.append(request.body["messages"][-1]["content"])
        return f"patch {len(asked)}"

    def of(replies: Iterator[Reply]) -> Result:
        return play(patch, item, options, answer, reply=lambda wait: next(replies))

    result = of(iter(verdicts))
    assert (result.text, result.values["tested_by"]) == ("patch 2", "CI")
    assert asked == ["Add 1.", "This patch fails:\npatch 1\n\ntest_sum fails"]
    assert of(itertools.repeat(verdicts[-1])).state == "stuck"


def test_the_test_of_the_docs_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(from debate import.*?)```", DOCS, re.DOTALL)
    monkeypatch.syspath_prepend(EXAMPLES / "recipes")
    names: dict[str, object] = {}
    exec(block, names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()  # type: ignore[operator]


def test_play_runs_gates_if_it_is_told_what_they_say() -> None:
    options = PanelOptions(model="mini", agents=["DEV"], rounds=0, checks=["contains:x"])
    item = Item(0, "a", {"prompt": "x?"})

    def judge(want: object) -> Checked:
        assert isinstance(want, Check)
        return Checked("x" in want.text)

    result = play(panel, item, options, lambda request: "an x", judge)
    assert result.values["results"][0]["score"] == 1.0
