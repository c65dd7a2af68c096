"""Recipe `panel`: agents in roles propose, criticise each other in a ring, revise, and are ranked."""

from __future__ import annotations

import math
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from batchyard.recipes import (
    Answer,
    Ask,
    Check,
    Checked,
    EndedItem,
    Flow,
    Item,
    Messages,
    Report,
    Result,
    Results,
    Score,
    Turn,
    recipe,
)
from recipes.answers import failure_of
from recipes.panel.events import Agent, events_of
from recipes.panel.messages import PanelMessages
from recipes.panel.options import JudgeOptions, PanelOptions, agents_of, check, check_of
from recipes.panel.report import report

FIRST_INTEGER = re.compile(r"-?\d+")

T = TypeVar("T")
_Part: TypeAlias = Generator[Turn, Any, T]
"""A part of the program, which yields turns as the whole does."""


@dataclass
class _Draft:
    """An agent's proposal: the last usable answer, its author, and each round's text."""

    author: Agent
    writer: Agent
    answer: Answer
    versions: list[str]
    mark: int | None = None
    comparison: Literal["won", "lost", "tied"] | None = None

    @property
    def content(self) -> str:
        return self.answer.text

    def proposal(self) -> dict[str, Any]:
        return {
            "content": self.content,
            "author_id": self.author.id,
            "author_role": self.author.role,
            "model": self.writer.model,
            "temperature": self.writer.temperature,
            "tokens": self.answer.input_tokens + self.answer.output_tokens,
            "finish_reason": self.answer.finish_reason,
        }

    def judgement(self) -> dict[str, Any]:
        return {"mark": self.mark, "comparison": self.comparison}


def _stages(options: PanelOptions) -> list[str]:
    rounds = [f"{kind}-{number}" for number in range(1, options.rounds + 1) for kind in ("critique", "revise")]
    return ["propose", *rounds, *(["judge"] if options.judge else [])]


def _expected(options: PanelOptions) -> list[float]:
    """Return the requests of all stages but the judge's, whose comparisons depend on its marks."""
    return [float(len(options.agents))] * (1 + 2 * options.rounds)


def _probe(options: PanelOptions) -> list[Ask | Score | Check]:
    asks = [
        Ask("propose", "A task", model=agent.model, temperature=agent.temperature, **options.limits)
        for agent in agents_of(options)
    ]
    judge = [] if options.judge is None else [_mark("A task", options.judge, options)]
    return [*asks, *judge, *(Check(check.gate, "", check.value) for check in map(check_of, options.checks))]


def _events(item: EndedItem, options: PanelOptions) -> list[dict[str, Any]]:
    return events_of(item, agents_of(options))


def _finish(results: Results, options: PanelOptions) -> Report:
    return report(results, agents_of(options), options.rounds, options.extract, scored=bool(options.checks))


def _said(stage: str, number: int, author: str, about: str, reader: str | None, answer: Answer) -> dict[str, Any]:
    """Return a message of the dialogue of round `number`. `about` is the agent whose proposal it is about."""
    failure = failure_of(answer)
    return {
        "stage": stage,
        "round": number,
        "author": author,
        "reader": reader,
        "about": about,
        "text": None if failure else answer.text,
        "error": {"code": failure.category, "message": failure.message} if failure else None,
        "tokens": answer.input_tokens + answer.output_tokens,
        "duration_seconds": answer.seconds,
    }


def _mark(content: Messages | str, judge: JudgeOptions, options: PanelOptions) -> Ask:
    low, high = judge.range
    mark = {"type": "integer", "minimum": low, "maximum": high}
    schema = {"type": "object", "properties": {"mark": mark}, "required": ["mark"], "additionalProperties": False}
    structure: dict[str, Any] = {"json": schema} if judge.structured else {}
    return Ask("judge", content, model=judge.model, temperature=0.0, **options.limits, **structure)


def _compare(content: Messages, judge: JudgeOptions, options: PanelOptions) -> Ask:
    structure: dict[str, Any] = {"choice": ["1", "2"]} if judge.structured else {}
    return Ask("judge", content, model=judge.model, temperature=0.0, **options.limits, **structure)


def _integer(answer: Answer, low: int, high: int) -> int | None:
    """Return the first integer of an answer if it is in the range."""
    number = FIRST_INTEGER.search(answer.text) if answer.ok else None
    value = int(number[0][:20]) if number else None
    return value if value is not None and low <= value <= high else None


def _mark_order(draft: _Draft) -> float:
    """Higher marks first; those without one last."""
    return math.inf if draft.mark is None else -draft.mark


def _judge_order(draft: _Draft) -> tuple[bool, bool, float]:
    """The winner of a comparison first, for only the two best are compared; then by mark."""
    return draft.comparison != "won", draft.comparison != "lost", _mark_order(draft)


class _Panel:
    """The deliberation over one item, in parts that each yield their turns."""

    def __init__(self, item: Item, options: PanelOptions) -> None:
        self.options = options
        self.agents = agents_of(options)
        self.dialogue: list[dict[str, Any]] = []
        self.failed: list[dict[str, Any]] = []
        self.drafts: list[_Draft] = []
        self.counters = {"failed_agents": 0, "kept_proposals": 0, "unreadable_marks": 0}
        self._messages = PanelMessages(item, options)

    def propose(self) -> _Part[None]:
        """Ask every agent for a proposal."""
        answers = yield [self._ask("propose", agent, "task") for agent in self.agents]
        for agent, answer in zip(self.agents, answers, strict=True):
            self.dialogue.append(_said("propose", 0, agent.id, agent.id, None, answer))
            if failure := failure_of(answer):
                self.failed.append({"agent_id": agent.id, "error": failure.message, "error_type": failure.category})
            else:
                self.drafts.append(_Draft(agent, agent, answer, [answer.text]))
        self.counters["failed_agents"] = len(self.failed)
        critics = {draft.author.id: self._critic(index) for index, draft in enumerate(self.drafts)}
        for message in self.dialogue:
            if self.options.rounds and message["author"] in critics:
                message["reader"] = critics[message["author"]].id

    def _critic(self, index: int) -> Agent:
        """Return the next one in the ring of those who have a proposal."""
        return self.drafts[(index + 1) % len(self.drafts)].author

    def revise(self, number: int) -> _Part[None]:
        """Let each proposal be criticised and revised. If either fails, the proposal stays as it is."""
        critics = [self._critic(index) for index in range(len(self.drafts))]
        critiques = yield [
            self._ask(f"critique-{number}", critic, "critique", proposal=draft.content)
            for draft, critic in zip(self.drafts, critics, strict=True)
        ]
        criticised = []
        for draft, critic, critique in zip(self.drafts, critics, critiques, strict=True):
            reviser = draft.author if self.options.reviser == "author" else critic
            about = draft.author.id
            self.dialogue.append(_said(f"critique-{number}", number, critic.id, about, reviser.id, critique))
            if not failure_of(critique):
                criticised.append((draft, critic, reviser, critique.text))
        self.counters["kept_proposals"] += len(self.drafts) - len(criticised)
        if criticised:
            revisions = yield [
                self._ask(f"revise-{number}", reviser, "revise", proposal=draft.content, critique=critique)
                for draft, _, reviser, critique in criticised
            ]
            for (draft, critic, reviser, _), revision in zip(criticised, revisions, strict=True):
                reader = critic.id if number < self.options.rounds else None
                message = _said(f"revise-{number}", number, reviser.id, draft.author.id, reader, revision)
                self.dialogue.append(message)
                if failure_of(revision):
                    self.counters["kept_proposals"] += 1
                else:
                    draft.writer, draft.answer = reviser, revision
        for draft in self.drafts:
            draft.versions.append(draft.content)

    def judge(self, judge: JudgeOptions) -> _Part[None]:
        """Let the judge mark each proposal, and compare two near ones in both orders."""
        answers = yield [
            _mark(self._messages.chat(None, "judge", proposal=draft.content, low=low, high=high), judge, self.options)
            for low, high in [judge.range]
            for draft in self.drafts
        ]
        for draft, answer in zip(self.drafts, answers, strict=True):
            draft.mark = _integer(answer, *judge.range)
            self.counters["unreadable_marks"] += draft.mark is None
            self.dialogue.append(_said("judge", self.options.rounds, "judge", draft.author.id, None, answer))
        best = sorted((draft for draft in self.drafts if draft.mark is not None), key=_mark_order)[:2]
        if len(best) < 2 or _mark_order(best[1]) - _mark_order(best[0]) > judge.near:
            return
        orders = [best, best[::-1]]
        answers = yield [
            _compare(
                self._messages.chat(None, "compare", first=first.content, second=second.content), judge, self.options
            )
            for first, second in orders
        ]
        winners = []
        for order, answer in zip(orders, answers, strict=True):
            choice = _integer(answer, 1, 2)
            winners.append(None if choice is None else order[choice - 1])
            about = ", ".join(draft.author.id for draft in order)
            self.dialogue.append(_said("judge", self.options.rounds, "judge", about, None, answer))
        agreed = winners[0] is not None and winners[0] is winners[1]
        for draft in best:
            draft.comparison = "tied" if not agreed else "won" if draft is winners[0] else "lost"

    def results(self) -> _Part[list[dict[str, Any]]]:
        """Check all versions of all proposals, and return the last ones ranked: by score, judge and agent number."""
        checks = [check_of(check) for check in self.options.checks]
        outcomes: dict[str, list[Checked]] = {}
        if checks:
            texts = list(dict.fromkeys(text for draft in self.drafts for text in draft.versions))
            checked = yield [Check(check.gate, text, check.value) for text in texts for check in checks]
            outcomes = {text: checked[at * len(checks) :][: len(checks)] for at, text in enumerate(texts)}

        def score(text: str) -> float:
            passed = [check.weight * outcome.passed for check, outcome in zip(checks, outcomes[text], strict=True)]
            return sum(passed) / sum(check.weight for check in checks)

        ranked = sorted(self.drafts, key=_judge_order)
        if checks:
            ranked.sort(key=lambda draft: -score(draft.content))
        return [
            {
                "proposal": draft.proposal(),
                "checks": [
                    {"gate": check.gate, "value": check.value, "weight": check.weight, "passed": outcome.passed}
                    | {"category": outcome.category, "message": outcome.message}
                    for check, outcome in zip(checks, outcomes.get(draft.content, []), strict=True)
                ],
                "score": score(draft.content) if checks else None,
                "scores": [score(text) for text in draft.versions] if checks else [],
                "judge": draft.judgement() if self.options.judge else None,
                "rank": rank,
            }
            for rank, draft in enumerate(ranked, 1)
        ]

    def _ask(self, stage: str, agent: Agent, prompt: str, **places: object) -> Ask:
        return Ask(
            stage,
            self._messages.chat(agent, prompt, **places),
            model=agent.model,
            temperature=agent.temperature,
            **self.options.limits,
        )


@recipe(
    "panel",
    PanelOptions,
    _stages,
    probe=_probe,
    check=check,
    finish=_finish,
    main="panel.jsonl",
    events=_events,
    expected=_expected,
)
def panel(item: Item, options: PanelOptions) -> Flow:
    """Let agents in roles propose, criticise each other in a ring, and revise; rank their proposals."""
    deliberation = _Panel(item, options)
    yield from deliberation.propose()
    if not deliberation.drafts:
        message = f"None of the {len(deliberation.agents)} agents answered."
        return item.failed(
            "all_agents_failed", message, failed_agents=deliberation.failed, dialogue=deliberation.dialogue
        )
    for number in range(1, options.rounds + 1):
        yield from deliberation.revise(number)
    if options.judge is not None:
        yield from deliberation.judge(options.judge)
    results = yield from deliberation.results()
    best = results[0]["proposal"]
    return Result(
        text=best["content"],
        counters=deliberation.counters,
        winner=best["author_id"],
        results=results,
        failed_agents=deliberation.failed,
        dialogue=deliberation.dialogue,
    )
