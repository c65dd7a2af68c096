"""The rounds of `generate`: which candidates each makes, which rows are good so far, and what the next one makes.

Candidate k, from 0, is made of seed k mod S, and of the next pair of template and persona in that seed's turn. So the
candidates of all rounds are one sequence, and what a round makes follows from what those before it have made.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from batchyard.recipes import Report, Results
from recipes.generate.options import Drafts, Making
from recipes.measures.similarity import DistinctTexts
from recipes.reports import write_lines

ITEM_CANDIDATES = 32
"""Candidates that one item makes at most."""
ROUND_CANDIDATES = 100_000
SPARE = 1.1
"""Candidates of a round, by those that are missing at the rate so far."""
FIRST_SPARE = 1.2
FIRST_SHARE = 0.1
"""Candidates of the first round by the rows that are wanted; of one that has to measure the tokens of a candidate."""
KEPT, REJECTED, NEXT = "kept.jsonl", "rejected.jsonl", "next.jsonl"
STATE = "batchyard_generate"
"""The column of a later round's rows with what the rounds before have left."""


class Candidate(NamedTuple):
    """Attributes: `number`, from 0, of all; `template` and `persona`: indices."""

    number: int
    template: int
    persona: int


@dataclass
class Progress:
    """What the rounds so far have made."""

    round: int = 0  # the one that comes next, from 0
    tried: int = 0  # candidates that were made
    good: int = 0
    requests: int = 0
    tokens: int = 0
    longest: int = 0  # the most tokens of a candidate
    silent: bool = False  # the last round has had no answer at all
    rejected: dict[str, int] = field(default_factory=dict)  # by reason


def candidate(number: int, seeds: int, options: Making) -> Candidate:
    templates, personas = len(options.prompts), max(1, len(options.personas))
    # A seed's first pair differs from its neighbour's, so that few candidates have many pairs.
    pair = (number // seeds + number % seeds) % (templates * personas)
    return Candidate(number, pair % templates, pair // templates)


def of_item(seed: int, seeds: int, options: Making) -> list[int]:
    """Return the first round's candidates of a seed: a few where tokens are limited, to measure one."""
    wanted = math.ceil(options.count * (FIRST_SPARE if options.tokens is None else FIRST_SHARE))
    number = min(wanted, options.most_requests // options.cost, seeds * ITEM_CANDIDATES, ROUND_CANDIDATES)
    return list(range(seed, number, seeds))


def next_round(progress: Progress, options: Making) -> int:
    """Return how many candidates the next round makes; 0 if none comes.

    There is none once the good ones are enough, the budget or the rounds are used up, or the last round has had no
    answer at all. Each candidate may take all the requests that it can.
    """
    missing = options.count - progress.good
    if missing <= 0 or progress.round >= options.rounds or progress.silent:
        return 0
    rate = max(progress.good, 1) / progress.tried
    wanted = math.ceil(missing / rate * SPARE)
    limits = [(options.most_requests - progress.requests) // options.cost, ROUND_CANDIDATES]
    if options.tokens is not None:
        limits.append((options.tokens - progress.tokens) // max(1, progress.longest))
    return max(0, min(wanted, *limits))


def by_seed(first: int, number: int, seeds: int) -> dict[int, list[list[int]]]:
    """Return the candidates from `first` on, by seed, in lists that an item each makes."""
    by_seed = {}
    for seed in range(seeds):
        numbers = list(range(first + (seed - first) % seeds, first + number, seeds))
        starts = range(0, len(numbers), ITEM_CANDIDATES)
        by_seed[seed] = [numbers[start : start + ITEM_CANDIDATES] for start in starts] or [[]]
    return by_seed


def finish(results: Results, options: Drafts) -> Report:
    """Choose the good rows, and write what the next round takes if one comes."""
    progress, distinct = Progress(), None if options.similarity is None else DistinctTexts(options.similarity)
    kept: list[dict[str, Any]] = []  # the good rows of all rounds so far, in the order of their candidates
    rejected: list[dict[str, Any]] = []  # rows of this round that are none, with `reason`
    seeds: dict[int, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    for item in results.items():
        result = item.result
        if "progress" in result:
            progress = Progress(**result["progress"])
        elif "kept" in result:
            kept.append(result["kept"])
            if distinct is not None:
                distinct.add(result["kept"]["draft"])
        else:
            state = item.columns.get(STATE) or {}
            columns = {name: value for name, value in item.columns.items() if name not in (STATE, "custom_id")}
            seed_id = str(state.get("seed_id", item.custom_id))
            seeds.setdefault(state.get("seed", item.number), {**columns, "custom_id": seed_id})
            rows += [{**row, "seed": result["seed"], "seed_id": seed_id} for row in result.get("rows") or ()]
    progress.round += 1
    for row in sorted(rows, key=lambda row: row["candidate"]):  # so that no seed comes before the others
        row["round"] = progress.round
        if row["reason"] is None and distinct is not None:
            number = distinct.add(row["draft"])
            if number is not None:
                row |= {"reason": "duplicate", "message": f"It is a near-duplicate of row {number + 1}."}
        if row["reason"] is None and len(kept) >= options.count:
            row |= {"reason": "not_needed", "message": "There were enough good rows."}
        (kept if row["reason"] is None else rejected).append(row)
    progress.good = len(kept)
    progress.tried += len(rows)
    progress.requests += sum(row["requests"] for row in rows)
    progress.tokens += sum(row["tokens"] for row in rows)
    progress.longest = max([progress.longest, *(row["tokens"] for row in rows)])
    progress.rejected = dict(Counter(progress.rejected) + Counter(row["reason"] for row in rejected))
    progress.silent = all(row["unanswered"] for row in rows)
    write_lines(results, KEPT, kept)
    write_lines(results, REJECTED, rejected)
    if following := next_round(progress, options):
        write_lines(results, NEXT, _next_rows(kept, seeds, progress, following))
    return Report({**asdict(progress), "next": following})


def _next_rows(
    kept: Iterable[Mapping[str, Any]], seeds: Mapping[int, dict[str, Any]], progress: Progress, number: int
) -> Iterator[dict[str, Any]]:
    """Yield the next round's input: the progress, the good rows so far, and the seeds with their candidates."""
    yield {"custom_id": "progress", "prompt": "", STATE: {"progress": asdict(progress)}}
    for index, row in enumerate(kept, 1):
        yield {"custom_id": f"kept-{index}", "prompt": "", STATE: {"kept": row}}
    for seed, parts in by_seed(progress.tried, number, len(seeds)).items():
        columns = seeds[seed + 1]
        for part in parts:
            first = f"+{part[0] + 1}" if part else ""
            state = {"seed": seed + 1, "seeds": len(seeds), "seed_id": columns["custom_id"], "candidates": part}
            yield {**columns, "custom_id": f"seed-{seed + 1}{first}", STATE: state}
