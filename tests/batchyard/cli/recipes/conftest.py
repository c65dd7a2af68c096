"""A terminal where no server runs, with a recipe in the user's folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from batchyard.cli import main

RECIPE = '''
from typing import Literal
from pydantic import BaseModel, ConfigDict, Field
from batchyard.recipes import Ask, Flow, Item, Options, Result, recipe

class Sampling(BaseModel):
    model_config = ConfigDict(extra="forbid")
    temperature: float = Field(1.0, ge=0, le=2)

class Agent(BaseModel):
    role: str

class Debate(Options):
    model: str
    n: int = Field(3, ge=2, le=9, description="Answers to each question")
    agents: list[str | Agent] = ["DEV", "QA"]
    diversity: bool = True
    keep_order: Literal["all", "best"] = "all"
    sampling: Sampling = Sampling()
    output: str = "an option with the name of a flag of every recipe"

@recipe("debate", Debate, stages=("argue",))
def debate(item: Item, options: Debate) -> Flow:
    """Let several answers compete."""
    (answer,) = yield [Ask("argue", item.chat(), model=options.model)]
    return Result(text=answer.text)
'''

Terminal = Callable[..., tuple[int, str, str]]


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """Runs a command where no server runs and the folder of recipes has the recipe `debate`."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/debate.py").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATCHYARD_URL", raising=False)
    monkeypatch.setenv("BATCHYARD_RECIPES", str(tmp_path / "recipes"))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["batchyard", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run
