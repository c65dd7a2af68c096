"""Rounds of `generate` played without a stack, as a composite would run them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchyard.recipes import Answer, EndedItem, Item, Report
from batchyard.recipes.program import Request, play
from recipes.generate.flow import drafts
from recipes.generate.options import Drafts, Generate
from recipes.generate.recipe import generate
from recipes.generate.rounds import STATE
from tests.support.played import PlayedResults, PlayedRounds, finished, judged, played_item

SEEDS = [{"custom_id": f"s{number}", "topic": topic} for number, topic in enumerate(("trains", "clocks", "rivers"), 1)]
Written = Callable[[Item, Request], Answer | str]


def run(
    folder: Path, write: Written, rows: Sequence[Mapping[str, Any]] = SEEDS, **options: Any
) -> tuple[Report, PlayedRounds, list[Report]]:
    """Run all rounds. Return the report, the results with their artifacts, and the reports of the rounds."""
    wanted = Generate.model_validate({"model": "writer"} | options)
    made: list[tuple[Report, PlayedResults]] = []
    for child in generate.children(wanted):
        values = Drafts.model_validate(child.options)
        results = PlayedResults([_ended(number, row, rows, values, write) for number, row in enumerate(rows, 1)])
        made.append((finished(drafts, results, values), results))
        if "next.jsonl" not in results.artifacts:
            break
        rows = results.lines("next.jsonl")
        assert all(STATE in row for row in rows)
    results = PlayedRounds(made, folder)
    assert generate.finish is not None
    return generate.finish(results, wanted), results, [report for report, _ in made]


def _ended(
    number: int, row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], options: Drafts, write: Written
) -> EndedItem:
    """Return an item of a round that has ended, whose result is kept as JSON."""
    item = Item(number, str(row["custom_id"]), row, total=len(rows), template=options.template)
    result = play(drafts, item, options, lambda request: write(item, request), lambda want: judged(want, item))
    values = json.loads(json.dumps({"text": result.text, **result.values}))
    return played_item(number, item.custom_id, row, result.state, values, result.error)
