"""A recipe of three stages for campaigns. The first word of each request names it: `<tag>-<item>.<stage>.<sample>`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.program import Program

ITEMS = 600
SAMPLES = 2
MODELS = """
[models.echo]
engine = "echo"
max_in_flight = 64
engine_args = { latency_ms = 300, call_log = "{calls}/calls" }
"""
RECIPE = '''
from batchyard.recipes import Ask, Flow, Item, Options, Result, Score, recipe, reward


class Relay(Options):
    model: str
    samples: int


@recipe("relay", Relay, stages=("draft", "revise", "judge"))
def relay(item: Item, options: Relay) -> Flow:
    """Draft, revise each draft, score the revisions, and judge them. The result does not name the run of the job."""
    name, numbers = item.columns["prompt"], range(options.samples)

    def ask(stage, number, text):
        return Ask(stage, f"{name}.{stage}.{number} {text}", model=options.model, temperature=0.8)

    drafts = yield [ask("draft", number, "a thought") for number in numbers]
    if not all(draft.ok for draft in drafts):
        return item.failed("no_draft")
    revised = yield [ask("revise", number, f"of {drafts[number].text}") for number in numbers]
    if not all(answer.ok for answer in revised):
        return item.failed("no_revision")
    scores = yield [Score("words", "relay", answer.text, 5.0) for answer in revised]
    texts = [answer.text.replace(name, item.custom_id) for answer in revised]
    (verdict,) = yield [ask("judge", 0, "of " + " and ".join(answer.text for answer in revised))]
    if not verdict.ok:
        return item.failed("no_verdict")
    answers = [*drafts, *revised, verdict]
    return Result(
        verdict.text.replace(name, item.custom_id),
        texts=texts,
        scores=[score.score for score in scores],
        seeds=[answer.seed for answer in answers],
        tokens=[answer.output_tokens for answer in answers],
    )


@reward("words")
def words(data_source, solution_str, ground_truth, extra_info=None):
    return len(solution_str.split()) / ground_truth
'''


def write(folder: Path) -> Path:
    """Write the recipe into a new folder for BATCHYARD_RECIPES, and return it."""
    recipes = folder / "recipes"
    recipes.mkdir()
    (recipes / "relay.py").write_text(RECIPE)
    return recipes


def program(items: int = ITEMS) -> Program:
    """Return the job that a campaign of kills runs again and again."""
    return Program(
        summary="three stages",
        models=MODELS,
        logs=("calls",),
        rows=partial(rows, items=items),
        requests=lambda tag: Counter(requests(tag, items)),
        ends=Counter(completed=items),
        body=partial(body, model="echo"),
        artifacts=("results.jsonl",),
    )


def rows(tag: str, items: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a job whose requests' names begin with this tag."""
    return ({"custom_id": f"q{number}", "prompt": f"{tag}-{number}"} for number in range(items))


def body(file_id: str, model: str, **options: Any) -> dict[str, Any]:
    """Return the body of POST /v1/jobs for a file of these rows."""
    return {
        "recipe": "relay",
        "input_file_id": file_id,
        "options": {"model": model, "samples": SAMPLES},
        **options,
    }


def requests(tag: str, items: int) -> set[str]:
    """Return the names of all requests of a job in which none fails."""
    samples = [f"{stage}.{sample}" for stage in ("draft", "revise") for sample in range(SAMPLES)]
    return {f"{tag}-{item}.{name}" for item in range(items) for name in (*samples, "judge.0")}


def result(custom_id: str) -> dict[str, Any]:
    """Return what is known beforehand of the result of an item."""
    texts = [f"{custom_id}.revise.{number} of {custom_id}.draft.{number} a thought" for number in range(SAMPLES)]
    return {"text": f"{custom_id}.judge.0 of {' and '.join(texts)}", "texts": texts, "scores": [1.0] * SAMPLES}
