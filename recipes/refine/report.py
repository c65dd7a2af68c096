"""What recipe refine leaves behind: artifacts, metrics, and blocks for the job's page."""

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from batchyard.json_lines import line
from batchyard.recipes import Bars, Block, EndedItem, Matrix, Report, Results, Table
from recipes.measures import intervals
from recipes.refine.options import Refine

MAIN = "done.jsonl"
STUCK = "stuck.jsonl"
DONE = ("text", "tier", "model", "attempts", "votes", "resolved_by")
"""What `done.jsonl` has of an item's result."""
REVIEWS = ("reviews", "review_unreadable", "probes", "probes_caught")
"""What an item's result counts of its reviews."""
LEAST_CATCH_RATE = 0.5
"""A reviewer whose catch rate may be lower agrees with too much."""


@dataclass
class _Tier:
    """Sums of one tier."""

    model: str
    items: int = 0  # those that it tried
    accepted: int = 0
    requests: int = 0
    tokens: int = 0
    # How many items made the attempt of a number, from 1, and how many passed
    begun: Counter[int] = field(default_factory=Counter)
    passed: Counter[int] = field(default_factory=Counter)

    def metrics(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "attempts": self.begun.total(),
            "accepted": self.accepted,
            "pass_rate": intervals.share(self.accepted, self.items),
            "requests_per_accepted": self.requests / self.accepted if self.accepted else None,
            "tokens_per_accepted": self.tokens / self.accepted if self.accepted else None,
        }


class _ItemTally:
    """Sums over the items of a job."""

    def __init__(self, options: Refine) -> None:
        self._options = options
        self._tiers = [_Tier(tier.model) for tier in options.tiers]
        self._states = Counter[str]()
        self._counts = Counter[str]()
        self._escalations = Counter[str]()
        self._stuck = Counter[str]()
        self._categories = Counter[str]()

    def add(self, item: EndedItem) -> None:
        """Take in an item that has ended."""
        self._states[item.state] += 1
        self._counts["resolved"] += item.state == "completed" and "resolved_by" in item.result
        if item.state == "stuck" and item.error:
            self._stuck[item.error["code"]] += 1
        for name in REVIEWS:
            self._counts[name] += item.result.get(name, 0)
        tries = Counter[int]()
        for attempt in item.result.get("history", []):
            number = attempt["tier"]
            tier = self._tiers[number - 1]
            tries[number] += 1
            tier.items += tries[number] == 1
            tier.begun[tries[number]] += 1
            tier.requests += attempt["requests"]
            tier.tokens += attempt["tokens"]
            if attempt["then"] == "accepted":
                tier.accepted += 1
                tier.passed[tries[number]] += 1
            else:
                self._categories[attempt["category"]] += 1
            if attempt["then"] == "escalate":
                self._escalations[attempt["reason"]] += 1

    def metrics(self) -> dict[str, Any]:
        accepted, items = self._states["completed"], self._states.total()
        reviews: dict[str, Any] = {}
        if self._options.reviewer is not None:
            reviews = {name: self._counts[name] for name in ("reviews", "review_unreadable")}
            reviews["catch_rate"] = intervals.share(self._counts["probes_caught"], self._counts["probes"])
        return {
            "items": items,
            "accepted": accepted,
            "resolved": self._counts["resolved"],
            "stuck": self._states["stuck"],
            "failed": self._states["failed"],
            "pass_rate": intervals.share(accepted, items),
            **reviews,
            "tiers": {str(number): tier.metrics() for number, tier in enumerate(self._tiers, 1)},
            "escalations": dict(sorted(self._escalations.items())),
            "stuck_by_reason": dict(sorted(self._stuck.items())),
            "categories": dict(sorted(self._categories.items())),
        }

    def warnings(self) -> list[tuple[str, str]]:
        """Return a warning if the reviewer lets too many known-wrong answers pass, or if nobody knows."""
        caught, probes = self._counts["probes_caught"], self._counts["probes"]
        low, high = intervals.wilson(caught, probes)
        if self._options.reviewer is None or not self._options.probes or low >= LEAST_CATCH_RATE:
            return []
        message = "No known-wrong answer could be put before the reviewer, so nobody knows how many it would fail."
        if probes:
            message = (
                f"The reviewer has failed {caught} of {probes} known-wrong answers; the interval of its catch rate is "
                f"{low:.0%} to {high:.0%}. Its PASS says little."
            )
        return [("reviewer_agrees", message)]

    def view(self) -> list[Block]:
        names = [f"{number} {tier.model}" for number, tier in enumerate(self._tiers, 1)]
        most = max((attempt for tier in self._tiers for attempt in tier.begun), default=0)
        numbers = range(1, most + 1)
        rates = [
            [tier.passed[at] / tier.begun[at] if tier.begun[at] else None for at in numbers] for tier in self._tiers
        ]
        rows = []
        for name, tier in zip(names, self._tiers, strict=True):
            metrics = tier.metrics()
            costs = [metrics[key] for key in ("requests_per_accepted", "tokens_per_accepted")]
            rows.append([name, tier.items, tier.accepted, *costs])
        columns = ["tier", "items", "accepted", "requests per accepted item", "tokens per accepted item"]
        blocks: list[Block] = [Table(title="Tiers", columns=columns, rows=rows)]
        if most:
            title = "Share of the attempts that were accepted, by tier and number of the attempt"
            blocks.append(Matrix(title=title, rows=names, columns=[*map(str, numbers)], values=rates))
        if self._categories:
            labels, values = zip(*self._categories.most_common(), strict=True)
            blocks.append(Bars(title="Failures by category", labels=list(labels), values=list(values)))
        return blocks


def report(results: Results, options: Refine) -> Report:
    """Write `done.jsonl` and `stuck.jsonl`, in the order of the input."""
    tally = _ItemTally(options)
    with ExitStack() as stack:
        done, stuck = (stack.enter_context(results.create(name)) for name in (MAIN, STUCK))
        for item in results.items():
            tally.add(item)
            history = item.result.get("history", [])
            named = {"custom_id": item.custom_id, "number": item.number}
            if item.state == "completed":
                kept = {**item.result, "attempts": len(history)}
                done.write(line({**named, **{name: kept.get(name) for name in DONE}}))
            elif item.state == "stuck":
                texts = [attempt["text"] for attempt in history if attempt["text"] is not None]
                reason, text = (item.error or {}).get("code"), texts[-1] if texts else None
                stuck.write(line({**named, "reason": reason, "text": text, "history": history}))
    return Report(tally.metrics(), tally.view(), tally.warnings())
