"""A folder of an operator's own recipes, a reward and a gate, and of the examples' tools, for tests of jobs."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.stacks import ROOT

RECIPES = '''
from pydantic import BaseModel, ConfigDict, Field

from batchyard.recipes import Ask, Failure, Flow, Item, Judgement, Options, Result, gate, recipe, reward


class Judge(BaseModel):
    model_config = ConfigDict(extra="forbid")
    model: str
    near: float = 0.5


class Debate(Options):
    model: str
    n: int = Field(3, ge=2, le=9)
    temperature: float = Field(0.8, ge=0, le=2)
    judge: Judge | None = None
    gates: list[str] = []
    reward: Judgement[str | dict[str, str] | None] = None


def check(options: Debate) -> None:
    if options.temperature == 0:
        raise ValueError("temperature: at temperature 0 all arguments are the same")


def probe(options: Debate) -> list[Ask]:
    return [Ask("argue", "Why?", model=options.model, temperature=options.temperature)]


@recipe("debate", Debate, stages=("argue", "judge"), check=check, probe=probe, expected=lambda options: [options.n])
def debate(item: Item, options: Debate) -> Flow:
    """Argue n times, and let a judge choose."""
    answers = yield [Ask("argue", item.chat(), model=options.model) for _ in range(options.n)]
    texts = [answer.text for answer in answers if answer.ok]
    if not texts:
        return item.failed("no_answer")
    judge = options.judge.model if options.judge else options.model
    choice = [str(number) for number in range(len(texts))]
    (verdict,) = yield [Ask("judge", item.chat(*texts), model=judge, choice=choice)]
    return Result(text=texts[int(verdict.text)], votes=len(texts))


class Steps(Options):
    steps: int = Field(1, ge=0)


@recipe("steps", Steps, stages=lambda options: [f"step-{number}" for number in range(options.steps)])
def steps(item: Item, options: Steps) -> Flow:
    """Ask once in each step."""
    for number in range(options.steps):
        yield [Ask(f"step-{number}", item.chat(), model="echo")]
    return Result()


class Twice(Options):
    model: str
    words: list[str] = []


@recipe("twice", Twice, stages=("draft", "final"))
def twice(item: Item, options: Twice) -> Flow:
    """Answer twice."""
    (draft,) = yield [Ask("draft", item.chat(*options.words), model=options.model)]
    (final,) = yield [Ask("final", item.chat(f"again: {draft.text}"), model=options.model)]
    ending = item.columns.get("ending")
    if ending == "failed":
        return item.failed("too_bad", "It is too bad.")
    return item.stuck("for_a_person") if ending == "stuck" else Result(text=final.text)


@reward("acme", data_sources=("acme/qa",), columns=("reward_model.ground_truth",))
def acme(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)


@gate("no-apology")
def no_apology(text, item, value):
    return Failure("style", "Do not apologise.") if "sorry" in text.lower() else None
'''

FLOWS = '''
import random
from pydantic import Field
from batchyard.recipes import Ask, Failure, Flow, Item, Options, Result, Score, Wait, gate, recipe, reward

class Contest(Options):
    model: str
    judge: str
    n: int = Field(3, ge=2, le=9)

@recipe("contest", Contest, stages=("argue", "judge"))
def contest(item: Item, options: Contest) -> Flow:
    """Let several answers compete."""
    answers = yield [Ask("argue", item.chat(), model=options.model, temperature=0.8) for _ in range(options.n)]
    texts = [answer.text for answer in answers if answer.ok]
    if not texts:
        return item.failed("no_answer")
    scores = yield [Score("prized", "prized/qa", text, item.columns["answer"]) for text in texts]
    (verdict,) = yield [
        Ask("judge", item.chat("Which?"), model=options.judge, choice=[str(number) for number in range(len(texts))])
    ]
    if not verdict.ok:
        return item.stuck("judge_failed", candidates=texts)
    return Result(text=texts[int(verdict.text)], votes=len(texts), scores=[score.score for score in scores])

class Picky(Options):
    model: str
    refuse: list[str] = []

@recipe("picky", Picky, stages=("draft", "final"))
def picky(item: Item, options: Picky) -> Flow:
    """Ask twice, and fail what is refused."""
    (draft,) = yield [Ask("draft", item.chat(), model=options.model)]
    (final,) = yield [Ask("final", item.chat(f"again: {draft.text}"), model=options.model)]
    return item.failed("refused") if draft.text in options.refuse else Result(text=final.text)

@recipe("dice", Contest, stages=("only",))
def dice(item: Item, options: Contest) -> Flow:
    """Depend on chance."""
    yield [Ask("only", str(random.random()), model=options.model)]
    return Result()

@recipe("hanging", Contest, stages=("only",))
def hanging(item: Item, options: Contest) -> Flow:
    """Never end."""
    (answer,) = yield [Ask("only", item.chat(), model=options.model)]
    while item.number == 4:
        pass
    return Result(text=answer.text)

class Gated(Options):
    model: str

@recipe("gated", Gated, stages=("draft",), loops=True)
def gated(item: Item, options: Gated) -> Flow:
    """Draft until somebody is content."""
    (draft,) = yield [Ask("draft", item.chat(), model=options.model)]
    while True:
        reply = yield Wait("verdict", gate="house", draft=draft.text)
        if reply.passed:
            return Result(text=draft.text)
        if reply.category == "hopeless":
            return item.stuck("hopeless", reply.message)
        (draft,) = yield [Ask("draft", item.chat(reply.message), model=options.model)]

@reward("prized", data_sources=("prized/qa",), columns=("answer",))
def prized(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)
'''
"""Flows that are stopped, refused or never end, and one that waits for a person's verdict."""


def write_recipes(folder: Path) -> Path:
    """Write the recipes into a new folder, and return it."""
    recipes = folder / "recipes"
    recipes.mkdir()
    (recipes / "own.py").write_text(RECIPES)
    shutil.copy(ROOT / "examples/recipes/shop.py", recipes)
    return recipes
