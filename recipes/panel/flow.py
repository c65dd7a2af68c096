"""Recipe `panel`: agents in roles propose, criticise each other in a ring, revise, and are ranked."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from batchyard.recipes import Answer, Ask, Check, Checked, Flow, Item, Messages, Result, Score, recipe
from recipes.answers import Part, failure_of, integer_of, mark_of
from recipes.panel.events import Agent, events_of
from recipes.panel.options import JudgeOptions, PanelMessages, PanelOptions, agents_of, check
from recipes.panel.report import report


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


def _stages(options: PanelOptions) -> list[str]:
    rounds = [f"{kind}-{number}" for number in range(1, options.rounds + 1) for kind in ("critique", "revise")]
    return ["propose", *rounds, *(["judge"] if options.judge else [])]


def _probe(options: PanelOptions) -> list[Ask | Score | Check]:
    asks = [
        Ask("propose", "A task", model=agent.model, temperature=agent.temperature, **options.limits)
        for agent in agents_of(options)
    ]
    if (judge := options.judge) is not None:
        asks.append(_judged("A task", judge, options, json=mark_of(*judge.range)))
    return [*asks, *(Check(check.gate, "", check.value) for check in options.checks)]


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


def _judged(content: Messages | str, judge: JudgeOptions, options: PanelOptions, **form: Any) -> Ask:
    form = form if judge.structured else {}
    return Ask("judge", content, model=judge.model, temperature=0.0, **options.limits, **form)


def _order(draft: _Draft) -> float:
    """Higher marks first; those without one last."""
    return math.inf if draft.mark is None else -draft.mark


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

    def propose(self) -> Part[None]:
        answers = yield [self._ask("propose", agent, "task") for agent in self.agents]
        for agent, answer in zip(self.agents, answers, strict=True):
            self.dialogue.append(_said("propose", 0, agent.id, agent.id, None, answer))
            if failure := failure_of(answer):
                self.failed.append({"agent_id": agent.id, "error": failure.message, "error_type": failure.category})
            else:
                self.drafts.append(_Draft(agent, agent, answer, [answer.text]))
        self.counters["failed_agents"] = len(self.failed)
        said = {message["author"]: message for message in self.dialogue}
        for index, draft in enumerate(self.drafts if self.options.rounds else ()):
            said[draft.author.id]["reader"] = self._critic(index).id

    def _critic(self, index: int) -> Agent:
        """Return the next one in the ring of those who have a proposal."""
        return self.drafts[(index + 1) % len(self.drafts)].author

    def revise(self, number: int) -> Part[None]:
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

    def judge(self, judge: JudgeOptions) -> Part[None]:
        """Let the judge mark each proposal, and compare two near ones in both orders."""
        low, high = judge.range
        answers = yield [
            _judged(content, judge, self.options, json=mark_of(low, high))
            for draft in self.drafts
            for content in [self._messages.chat(None, "judge", proposal=draft.content, low=low, high=high)]
        ]
        for draft, answer in zip(self.drafts, answers, strict=True):
            draft.mark = integer_of(answer, low, high)
            self.counters["unreadable_marks"] += draft.mark is None
            self.dialogue.append(_said("judge", self.options.rounds, "judge", draft.author.id, None, answer))
        best = sorted((draft for draft in self.drafts if draft.mark is not None), key=_order)[:2]
        if len(best) < 2 or _order(best[1]) - _order(best[0]) > judge.near:
            return
        orders = [best, best[::-1]]
        answers = yield [
            _judged(content, judge, self.options, choice=["1", "2"])
            for first, second in orders
            for content in [self._messages.chat(None, "compare", first=first.content, second=second.content)]
        ]
        winners = []
        for order, answer in zip(orders, answers, strict=True):
            choice = integer_of(answer, 1, 2)
            winners.append(None if choice is None else order[choice - 1])
            about = ", ".join(draft.author.id for draft in order)
            self.dialogue.append(_said("judge", self.options.rounds, "judge", about, None, answer))
        agreed = winners[0] is not None and winners[0] is winners[1]
        for draft in best:
            draft.comparison = "tied" if not agreed else "won" if draft is winners[0] else "lost"

    def results(self) -> Part[list[dict[str, Any]]]:
        """Check all versions of all proposals, and return the last ones ranked: by score, judge and agent number."""
        checks = self.options.checks
        outcomes: dict[str, list[Checked]] = {}
        if checks:
            texts = list(dict.fromkeys(text for draft in self.drafts for text in draft.versions))
            checked = yield [Check(check.gate, text, check.value) for text in texts for check in checks]
            outcomes = {text: checked[at * len(checks) :][: len(checks)] for at, text in enumerate(texts)}

        def score(text: str) -> float:
            passed = [check.weight * outcome.passed for check, outcome in zip(checks, outcomes[text], strict=True)]
            return sum(passed) / sum(check.weight for check in checks)

        # The winner of a comparison first, for only the two best are compared; then by mark.
        ranked = sorted(
            self.drafts, key=lambda each: (each.comparison != "won", each.comparison != "lost", _order(each))
        )
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
                "judge": {"mark": draft.mark, "comparison": draft.comparison} if self.options.judge else None,
                "rank": rank,
            }
            for rank, draft in enumerate(ranked, 1)
        ]

    def _ask(self, stage: str, agent: Agent, prompt: str, **places: object) -> Ask:
        content = self._messages.chat(agent, prompt, **places)
        return Ask(stage, content, model=agent.model, temperature=agent.temperature, **self.options.limits)


@recipe(
    "panel",
    PanelOptions,
    _stages,
    probe=_probe,
    check=check,
    finish=report,
    main="panel.jsonl",
    events=lambda item, options: events_of(item, agents_of(options)),
    # Not those of the judge, whose comparisons depend on its marks.
    expected=lambda options: [float(len(options.agents))] * (1 + 2 * options.rounds),
)
def panel(item: Item, options: PanelOptions) -> Flow:
    """Let agents propose, criticise and revise, and rank the results."""
    deliberation = _Panel(item, options)
    yield from deliberation.propose()
    kept = {"failed_agents": deliberation.failed, "dialogue": deliberation.dialogue}
    if not deliberation.drafts:
        return item.failed("all_agents_failed", f"None of the {len(deliberation.agents)} agents answered.", **kept)
    for number in range(1, options.rounds + 1):
        yield from deliberation.revise(number)
    if options.judge is not None:
        yield from deliberation.judge(options.judge)
    results = yield from deliberation.results()
    best = results[0]["proposal"]
    return Result(best["content"], deliberation.counters, winner=best["author_id"], results=results, **kept)
