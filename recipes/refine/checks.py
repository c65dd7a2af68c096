"""What the options of recipe `refine` say together: faults that no field has alone, and the columns they name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchyard.wording import PLACE, cut, quoted, suggestion
from recipes import extracts
from recipes.gates import BUILT_IN, columns, json_texts
from recipes.refine.options import Refine


def check(options: Refine) -> None:
    """Raise ValueError for options that cannot be meant together."""
    votes, reviewer = options.votes, options.reviewer
    templates = {"prompts.retry": (options.prompts.retry, ["feedback", "answer"])}
    templates["prompts.escalate"] = options.prompts.escalate, ["feedback", "answer"]
    if reviewer is not None:
        templates["reviewer.prompt"] = reviewer.prompt, ["answer"]
    if votes is not None:
        try:
            extracts.check(votes.extract)
        except ValueError as error:
            raise ValueError(f"votes.extract: {error}") from error
        sampling = votes.sampling or options.sampling
        if votes.n > 1 and sampling.temperature == 0:
            raise ValueError("votes.n: At temperature 0 all answers of a model are the same; ask for one.")
        voters = [*(tier.model for tier in options.tiers), *votes.models]
        for name in votes.weights:
            if name not in voters:
                remedy = suggestion(name, voters, sentence=True)
                raise ValueError(f"votes.weights: {quoted(name)} has no vote. {remedy}")
        if votes.weights and votes.strategy != "weighted":
            raise ValueError(f"votes.weights: Strategy {votes.strategy} has no weights; take `weighted`.")
        if votes.arbiter is not None:
            templates["votes.arbiter.prompt"] = votes.arbiter.prompt, ["candidates"]
    for path, (template, places) in templates.items():
        for name in PLACE.findall(template):
            if name not in places:
                remedy = suggestion(name, places, "{{{}}}", sentence=True)
                raise ValueError(f"{path}: There is no place {{{cut(name, 100)}}}. {remedy}")


def named_columns(options: Refine, row: Mapping[str, Any]) -> list[str]:
    """Return the columns that the gates' values name."""
    schemas = {gate.name for gate in json_texts.GATES}
    named = (gate for gate in options.gates if gate.gate.removeprefix("not-") not in schemas)
    return [name for gate in named if gate.gate in BUILT_IN for name in columns.names(gate.value)]
