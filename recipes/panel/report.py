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

from batchyard.comparing import histogram
from batchyard.json_lines import line
from batchyard.recipes import Block, EndedItem, Lines, Matrix, Report, Results, Series, Table
from recipes import extracts
from recipes.measures import intervals
from recipes.panel.events import Agent, deliberation, events_of
from recipes.panel.options import PanelOptions, agents_of


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


class _TaskTally:
    """Sums over the tasks of a panel. `ties` are tasks whose winner is no better than the second."""

    def __init__(self, options: PanelOptions, agents: Sequence[Agent]) -> None:
        self._options = options
        self._best_by_task = array("d")
        self.agents = {
            agent.id: _AgentTally(agent.role, agent.model, rounds=[Mean() for _ in range(options.rounds + 1)])
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
        if self._options.checks and item.state in ("completed", "failed"):
            scores = {ranked["proposal"]["author_id"]: ranked["score"] for ranked in results}
            self._best_by_task.append(results[0]["score"] if results else 0.0)
            for name, agent in self.agents.items():
                agent.by_task.append(scores.get(name, 0.0))
        if len(results) > 1:  # a tie: nothing but the agents' order ranks the first before the second
            best, second = ([each["score"], (each["judge"] or {}).get("mark")] for each in results[:2])
            self.ties += best == second and (results[0]["judge"] or {}).get("comparison") != "won"
        for better, worse in itertools.permutations(results, 2):
            pair = better["proposal"]["author_id"], worse["proposal"]["author_id"]
            self.before.setdefault(pair, Mean()).add(float(better["rank"] < worse["rank"]))
        if len(results) > 1 and self._options.extract is not None:
            answers = [extracts.extract(self._options.extract, ranked["proposal"]["content"]) for ranked in results]
            self.consensus.add(float(None not in answers and len(set(answers)) == 1))
        dialogue = item.result.get("dialogue", [])
        first = [said["text"] for said in dialogue if said["stage"] == "propose" and said["text"]]
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
                    **{key: getattr(agent, key) for key in ("role", "model", "proposals", "failures", "wins")},
                    "score": agent.score(),
                    "tokens": agent.tokens,
                    "seconds": agent.latency(),
                }
                for name, agent in self.agents.items()
            },
            "roles": {role: {"score": mean()} for role, mean in self.roles.items()},
            **{key: getattr(self, key)() for key in ("consensus", "revision_gain", "diversity", "distinct_2")},
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
            intervals.document(sum(column) / tasks, tasks, end) for column, end in zip(columns, ends, strict=True)
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
        title = "Share of tasks in which the agent of the row ranks before that of the column"
        values = [[self.before.get((row, column), Mean()).value for column in names] for row in names]
        blocks: list[Block] = [
            Table(title="Agents", columns=columns, rows=rows),
            Matrix(title=title, rows=names, columns=names, values=values),
        ]
        if self.revision_gain.n:
            series = [Series(name=name, y=[mean.value for mean in self.agents[name].rounds]) for name in names]
            blocks.append(Lines(title="Mean score by round", x=list(range(self._options.rounds + 1)), series=series))
        return blocks


def report(results: Results, options: PanelOptions) -> Report:
    """Write `panel.jsonl`, `dialogue.jsonl` and `events.jsonl`, in the order of the input."""
    agents = agents_of(options)
    tally = _TaskTally(options, agents)
    with ExitStack() as stack:
        names = ("panel.jsonl", "dialogue.jsonl", "events.jsonl")
        tasks, messages, told = (stack.enter_context(results.create(name)) for name in names)
        for item in results.items():
            tally.add(item)
            tasks.write(line(deliberation(item)))
            for message in item.result.get("dialogue", []):
                messages.write(line({"task_id": item.custom_id, **message}))
            for event in events_of(item, agents):
                told.write(line(event))
    return Report(tally.metrics(), tally.view())
