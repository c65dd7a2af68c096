"""Recipes played over rows without a stack, with results as their finish hooks see them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from batchyard.recipes import (
    Answer,
    Call,
    Called,
    Check,
    Checked,
    EndedItem,
    Item,
    Options,
    Recipe,
    Reply,
    Report,
    Score,
    Scored,
    Wait,
)
from batchyard.recipes.program import RecipeError, Request, play
from jobs.running.judging import judge
from recipes.registry import Catalogue, load


def played_item(
    number: int,
    custom_id: str,
    columns: Mapping[str, Any],
    state: str,
    result: Mapping[str, Any],
    error: Mapping[str, Any] | None,
) -> EndedItem:
    """Return an item that has taken 1.5 s."""
    return EndedItem(number, custom_id, columns, state, result, error, 1_700_000_000.0, 1_700_000_001.5)


@dataclass
class PlayedResults:
    """Results in memory: `artifacts` holds what a finish hook wrote, by name."""

    ended: list[EndedItem]
    artifacts: dict[str, bytes] = field(default_factory=dict)

    def items(self) -> Iterator[EndedItem]:
        yield from self.ended

    def tables(self) -> Iterator[pa.Table]:
        yield pa.Table.from_pylist([dict(item.columns) for item in self.ended])

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        file = io.BytesIO()
        yield file
        self.artifacts[name] = file.getvalue()

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of an artifact."""
        return [json.loads(line) for line in self.artifacts[name].splitlines()]


class PlayedRounds(PlayedResults):
    """What the composite's finish hook sees: an item for each round, and the artifacts of the rounds' jobs."""

    def __init__(self, rounds: Sequence[tuple[Report, PlayedResults]], folder: Path) -> None:
        super().__init__(
            [
                played_item(number, f"rows/0/{number}", {"round": number}, "completed",
                            {"job_id": f"job_{number}", "metrics": json.loads(json.dumps(report.metrics))}, None)
                for number, (report, _) in enumerate(rounds)
            ]
        )  # fmt: skip
        self.rounds = rounds
        self._folder = folder

    def of_child(self, job_id: str, name: str) -> Path | None:
        content = self.rounds[int(job_id.removeprefix("job_"))][1].artifacts.get(name)
        if content is None:
            return None
        path = self._folder / f"{job_id}-{name}"
        path.write_bytes(content)
        return path


def judged(want: Score | Check, item: Item) -> Scored | Checked:
    """Return the outcome of the built-in reward or gate, as a job's processes judge it."""
    return judge(_built_in(), want, item)


@cache
def _built_in() -> Catalogue:
    return load(None)


def played(
    recipe: Recipe[Any],
    rows: Sequence[Mapping[str, Any]],
    options: Options,
    answer: Callable[[Item, Request], Answer | str],
    job_seed: int = 0,
    reply: Callable[[Item, Wait], Reply] | None = None,
    call: Callable[[Call], Called] | None = None,
) -> PlayedResults:
    """Run a recipe over rows, with the answers of `answer` and the built-in rewards and gates.

    Items run one after another, and the peer of each is the last one that has completed.
    """
    ended: list[EndedItem] = []

    def peer() -> str | None:
        return next((item.result["text"] for item in reversed(ended) if item.state == "completed"), None)

    for number, columns in enumerate(rows):
        custom_id = str(columns.get("custom_id", f"item-{number}"))
        item = Item(
            number,
            custom_id,
            columns,
            total=len(rows),
            job_seed=job_seed,
            system=options.system,
            template=options.template,
        )
        try:
            result = play(
                recipe,
                item,
                options,
                lambda request, item=item: answer(item, request),
                lambda want, item=item: judged(want, item),
                None if reply is None else lambda wait, item=item: reply(item, wait),
                peer,
                call,
            )
        except RecipeError as error:
            ended.append(
                played_item(number, custom_id, columns, "failed", {}, {"code": error.code, "message": error.message})
            )
            continue
        values = json.loads(json.dumps({"text": result.text, **result.values}))  # they are kept as JSON
        ended.append(played_item(number, custom_id, columns, result.state, values, result.error))
    return PlayedResults(ended)


def finished(recipe: Recipe[Any], results: PlayedResults, options: Options) -> Report:
    """Run the recipe's finish hook."""
    assert recipe.finish is not None
    return recipe.finish(results, options)
