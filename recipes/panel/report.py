"""What recipe panel leaves behind: artifacts, metrics, and blocks for the job's page."""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from rapidfuzz.distance import Levenshtein

from batchyard import histogram
from batchyard.json_lines import line
from batchyard.recipes import Block, EndedItem, Lines, Matrix, Report, Results, Series, Table
from recipes import extracts
from recipes.measures import intervals
from recipes.panel.events import Agent, deliberation, events_of


@dataclass
class Mean:
    """A mean and the number of values that it is of."""

    total: float = 0.0
    n: int = 0

    def add(self, *values: float | None) -> None:
        """Take in values; None is none."""
        for value in values:
            if value is not None:
                self.total += value
                self.n += 1

    @property
    def value(self) -> float | None:
        return self.total / self.n if self.n else None

    def __call__(self) -> dict[str, Any]:
        """Return {"mean", "n"}."""
        return {"mean": self.value, "n": self.n}


@dataclass
class _AgentTally:
    role: str
    model: str
    rounds: list[Mean]
    proposals: int = 0
    failures: int = 0
    wins: int = 0
    tokens: int = 0
    score: Mean = field(default_factory=Mean)
    seconds: Counter[str] = field(default_factory=Counter)
    by_task: array[float] = field(default_factory=lambda: array("d"))

    def latency(self) -> dict[str, Any]:
        """Return n and quantiles of the seconds of the agent's requests in the engine."""
        quantiles = histogram.quantiles(self.seconds, (0.5, 0.95, 0.99)) if self.seconds else [None] * 3
        return {"n": histogram.count(self.seconds), **dict(zip(("p50", "p95", "p99"), quantiles, strict=True))}


def diversity(texts: Sequence[str]) -> float | None:
    """Return 1 less the mean similarity of pairs of texts, by edits over the longer length."""
    pairs = list(itertools.combinations(texts, 2))
    return sum(Levenshtein.normalized_distance(a, b) for a, b in pairs) / len(pairs) if pairs else None


def distinct_2(texts: Iterable[str]) -> float | None:
    """Return the share of different ones among all pairs of neighbouring words (Li et al. 2016, arXiv 1510.03055)."""
    words = [text.casefold().split() for text in texts]
    pairs = [pair for text in words for pair in itertools.pairwise(text)]
    return len(set(pairs)) / len(pairs) if pairs else None


def _equal(best: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """True if nothing but the agents' order ranks one proposal before the other."""
    judgements = [ranked["judge"] or {} for ranked in (best, second)]
    return (
        best["score"] == second["score"]
        and judgements[0].get("mark") == judgements[1].get("mark")
        and judgements[0].get("comparison") != "won"
    )


class _TaskTally:
    """Sums over the tasks of a panel. `ties` are tasks whose winner is no better than the second."""

    def __init__(self, agents: Sequence[Agent], rounds: int, extract: str | None, scored: bool) -> None:
        self._extract = extract
        self._scored = scored
        self._best_by_task = array("d")
        self._rounds = rounds
        self.agents = {
            agent.id: _AgentTally(agent.role, agent.model, rounds=[Mean() for _ in range(rounds + 1)])
            for agent in agents
        }
        self.states = Counter[str]()
        self.ties = 0
        self.roles: dict[str, Mean] = {agent.role: Mean() for agent in self.agents.values()}
        self.before: dict[tuple[str, str], Mean] = {}
        self.consensus, self.revision_gain, self.diversity, self.distinct_2 = Mean(), Mean(), Mean(), Mean()

    def add(self, item: EndedItem) -> None:
        """Take in a task that has ended."""
        self.states[item.state] += 1
        results: list[Mapping[str, Any]] = item.result.get("results", [])
        for failed in item.result.get("failed_agents", []):
            self.agents[failed["agent_id"]].failures += 1
        for message in item.result.get("dialogue", []):
            if agent := self.agents.get(message["author"]):  # the judge is none
                agent.tokens += message["tokens"]
                if message["duration_seconds"] is not None:
                    agent.seconds.update(histogram.of([message["duration_seconds"]]))
        for ranked in results:
            agent = self.agents[ranked["proposal"]["author_id"]]
            agent.proposals += 1
            agent.wins += ranked["rank"] == 1
            agent.score.add(ranked["score"])
            self.roles[agent.role].add(ranked["score"])
            for mean, score in zip(agent.rounds, ranked["scores"], strict=False):
                mean.add(score)
            if len(ranked["scores"]) > 1:
                self.revision_gain.add(ranked["scores"][-1] - ranked["scores"][0])
        if self._scored and item.state in ("completed", "failed"):
            scores = {ranked["proposal"]["author_id"]: ranked["score"] for ranked in results}
            self._best_by_task.append(results[0]["score"] if results else 0.0)
            for name, agent in self.agents.items():
                agent.by_task.append(scores.get(name, 0.0))
        if len(results) > 1:
            self.ties += _equal(*results[:2])
        for better, worse in itertools.permutations(results, 2):
            pair = better["proposal"]["author_id"], worse["proposal"]["author_id"]
            self.before.setdefault(pair, Mean()).add(float(better["rank"] < worse["rank"]))
        if len(results) > 1 and self._extract is not None:
            answers = [extracts.extract(self._extract, ranked["proposal"]["content"]) for ranked in results]
            self.consensus.add(float(None not in answers and len(set(answers)) == 1))
        first = [
            said["text"] for said in item.result.get("dialogue", []) if said["stage"] == "propose" and said["text"]
        ]
        self.diversity.add(diversity(first))
        self.distinct_2.add(distinct_2(first))

    def metrics(self) -> dict[str, Any]:
        return {
            "tasks": sum(self.states.values()),
            **{state: self.states[state] for state in ("completed", "failed")},
            "failed_agents": sum(agent.failures for agent in self.agents.values()),
            "ties": self.ties,
            "agents": {
                name: {
                    "role": agent.role,
                    "model": agent.model,
                    "proposals": agent.proposals,
                    "failures": agent.failures,
                    "wins": agent.wins,
                    "score": agent.score(),
                    "tokens": agent.tokens,
                    "seconds": agent.latency(),
                }
                for name, agent in self.agents.items()
            },
            "roles": {role: {"score": mean()} for role, mean in self.roles.items()},
            "consensus": self.consensus(),
            "revision_gain": self.revision_gain(),
            "diversity": self.diversity(),
            "distinct_2": self.distinct_2(),
            **self._gain(),
        }

    def _gain(self) -> dict[str, Any]:
        """Return the mean score of the winners, that of the best single agent, and the difference by task."""
        tasks = len(self._best_by_task)
        if not tasks:
            return {}
        name, agent = max(self.agents.items(), key=lambda entry: sum(entry[1].by_task))
        columns = [self._best_by_task, agent.by_task]
        columns.append(array("d", (best - alone for best, alone in zip(*columns, strict=True))))
        ends = intervals.of_means(columns)
        best, alone, gain = (
            {"mean": sum(column) / tasks, "n": tasks, "intervals": {"mean": list(end)}}
            for column, end in zip(columns, ends, strict=True)
        )
        verdict = "gain" if ends[-1][0] > 0 else "none"
        return {"best_of": best, "best_agent": {"agent": name, **alone}, "gain": {**gain, "verdict": verdict}}

    def view(self) -> list[Block]:
        names = list(self.agents)
        columns = ["agent", "model", "proposals", "wins", "mean score", "tokens", "p50 s", "p95 s", "p99 s"]
        rows = []
        for name, agent in self.agents.items():
            latency = agent.latency()
            quantiles = [latency[quantile] for quantile in ("p50", "p95", "p99")]
            rows.append([name, agent.model, agent.proposals, agent.wins, agent.score.value, agent.tokens, *quantiles])
        blocks: list[Block] = [
            Table(title="Agents", columns=columns, rows=rows),
            Matrix(
                title="Share of tasks in which the agent of the row ranks before that of the column",
                rows=names,
                columns=names,
                values=[[self.before.get((row, column), Mean()).value for column in names] for row in names],
            ),
        ]
        if self.revision_gain.n:
            series = [Series(name=name, y=[mean.value for mean in self.agents[name].rounds]) for name in names]
            blocks.append(Lines(title="Mean score by round", x=list(range(self._rounds + 1)), series=series))
        return blocks


def report(results: Results, agents: Sequence[Agent], rounds: int, extract: str | None, *, scored: bool) -> Report:
    """Write `panel.jsonl`, `dialogue.jsonl` and `events.jsonl`, in the order of the input.

    Args:
        scored: the proposals were checked.
    """
    tally = _TaskTally(agents, rounds, extract, scored)
    with ExitStack() as stack:
        names = ("panel.jsonl", "dialogue.jsonl", "events.jsonl")
        tasks, messages, told = (stack.enter_context(results.create(name)) for name in names)
        for item in results.items():
            tally.add(item)
            tasks.write(line(deliberation(item).model_dump(mode="json")))
            for message in item.result.get("dialogue", []):
                messages.write(line({"task_id": item.custom_id, **message}))
            for event in events_of(item, agents):
                told.write(line(event))
    return Report(tally.metrics(), tally.view())
