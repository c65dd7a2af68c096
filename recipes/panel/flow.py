"""Recipe `panel`: agents in roles propose, criticise each other in a ring, revise, and are ranked."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import orjson
from pydantic import Field, field_validator

from batchyard.recipes import (
    Answer,
    Ask,
    Check,
    Checked,
    EndedItem,
    Flow,
    Item,
    Judgement,
    Messages,
    NestedOptions,
    Options,
    Report,
    Result,
    Results,
    Score,
    Turn,
    recipe,
)
from batchyard.wording import PLACE, fill, nearest, quoted
from recipes import extracts
from recipes.gates import OF_ANSWERS, parse
from recipes.panel.events import Agent, events_of
from recipes.panel.report import report

ROLES = {
    "DEV": "You are an expert software developer. You write correct, readable code, and you say what it costs.",
    "QA": "You are an expert in quality assurance. You look for what can go wrong, and for the test that shows it.",
    "ARCHITECT": "You are an expert software architect. You weigh structures by what they will cost later.",
    "DEVOPS": "You are an expert DevOps engineer. You think of operation, and of what happens when a part fails.",
    "DATA": "You are an expert data engineer. You think of how data is modelled, moved and kept correct.",
}
DIVERSITY = 1.3
"""Factor of the temperature of agents after the first."""
MOST_TEMPERATURE = 2.0
FIRST_INTEGER = re.compile(r"-?\d+")

T = TypeVar("T")
_Part: TypeAlias = Generator[Turn, Any, T]
"""A part of the program, which yields turns as the whole does."""


class AgentOptions(NestedOptions):
    """An agent with a model or a temperature of its own. The temperature is then taken as it is."""

    role: str
    model: str | None = None
    temperature: float | None = Field(None, ge=0, le=MOST_TEMPERATURE)


class CheckOptions(NestedOptions):
    """A gate that scores proposals, with its weight."""

    gate: str
    value: Any = None
    weight: float = Field(1.0, gt=0)


def _check_of(check: str | CheckOptions) -> CheckOptions:
    if isinstance(check, CheckOptions):
        return check
    name, value = parse(check)
    return CheckOptions(gate=name, value=value)


class JudgeOptions(NestedOptions):
    """A model that marks each proposal with an integer, and compares the two best if they are close."""

    model: str
    range: tuple[int, int] = Field((1, 10), description="Lowest and highest mark")
    near: float = Field(0.5, ge=0, description="Difference of marks up to which the two best are compared")
    allow_author: bool = Field(False, description="The judge may be the model of an agent")
    structured: bool = Field(True, description="Hold the judge to the form of its answers; false: where no engine can")


class Prompts(NestedOptions):
    """The texts of all messages, with places in braces. A paragraph whose places are empty is left out."""

    system: str = "{role}\n\n{rubric}\n\n{requirements}\n\n{diversity}"
    diversity: str = (
        "Be creative and diverse. Look for alternative perspectives on the task, and question what others would take "
        "for granted. Think outside the box."
    )
    task: str = (
        "{task}\n\nWrite a detailed proposal with these sections:\n\n"
        "1. Analysis of the requirements\n2. Proposed solution approach\n3. Implementation details\n"
        "4. Potential challenges and how to meet them\n\n{metadata}\n\n{hint}"
    )
    critique: str = (
        "{task}\n\n{metadata}\n\nA colleague proposes:\n\n{proposal}\n\n"
        "Criticise this proposal. Name its errors and gaps, the most important first, and say how to mend each."
    )
    revise: str = (
        "{task}\n\n{metadata}\n\nThe proposal:\n\n{proposal}\n\nA colleague's critique of it:\n\n{critique}\n\n"
        "Revise the proposal. Mend what the critique is right about. Write the whole revised proposal and nothing else."
    )
    judge: str = (
        "{task}\n\n{metadata}\n\n{rubric}\n\n{requirements}\n\nA proposal:\n\n{proposal}\n\n"
        "How good is this proposal? Answer with one integer from {low} (worst) to {high} (best)."
    )
    compare: str = (
        "{task}\n\n{metadata}\n\n{rubric}\n\n{requirements}\n\nProposal 1:\n\n{first}\n\nProposal 2:\n\n{second}\n\n"
        "Which of the two proposals is better? Answer with 1 or 2."
    )


COMMON_PLACES = ("task", "rubric", "requirements", "metadata", "hint")
PLACES: Mapping[str, Sequence[str]] = {
    "system": ("role", "diversity"),
    "diversity": (),
    "task": (),
    "critique": ("proposal",),
    "revise": ("proposal", "critique"),
    "judge": ("proposal", "low", "high"),
    "compare": ("first", "second"),
}
"""What each prompt may name in braces beside COMMON_PLACES."""


class PanelOptions(Options):
    """The options of recipe panel."""

    agents: list[str | AgentOptions] = Field(
        ["DEV", "QA", "ARCHITECT"], min_length=1, max_length=64, description="Roles, or {role, model, temperature}"
    )
    model: str | None = Field(None, description="Model of the agents that name none")
    rounds: int = Field(1, ge=0, le=5, description="How often all proposals are criticised and revised")
    temperature: float = Field(0.7, ge=0, le=MOST_TEMPERATURE, description="Temperature of the first agent")
    max_tokens: int = Field(2048, ge=1, description="Most tokens of one answer")
    timeout: float | None = Field(60, gt=0, description="Most seconds of one request in its engine")
    diversity: bool = Field(True, description="Agents after the first are told to differ, at 1.3 times the temperature")
    reviser: Literal["author", "critic"] = Field("author", description="Who revises a proposal")
    roles: dict[str, str | None] = Field({}, description="Roles of your own: name and prompt, or null for an expert")
    rubric: str | list[str] | dict[str, Any] | None = Field(None, description="How proposals will be judged")
    requirements: list[str] = Field([], description="What proposals have to meet")
    metadata: dict[str, Any] = Field({}, description="What else agents are to know")
    prompts: Prompts = Field(Prompts(), description="Texts of the messages, with places such as {task}")
    judge: JudgeOptions | None = Field(None, description="A model that marks the proposals")
    notify: bool = Field(False, description="Send an event for each task to webhooks, for up to 1,000 tasks")
    checks: Judgement[list[str | CheckOptions]] = Field([], description="Gates: `name:value` or {gate, value, weight}")
    extract: Judgement[str | None] = Field(None, description="What of a proposal is its answer, such as last_number")

    @field_validator("checks")
    @classmethod
    def _parsed(cls, checks: list[str | CheckOptions]) -> list[CheckOptions]:
        return [_check_of(check) for check in checks]


@dataclass
class _Draft:
    """An agent's proposal as it stands: the last usable answer, who wrote it, and the text after each round."""

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


def agents_of(options: PanelOptions) -> list[Agent]:
    """Return the agents in order, with their ids: `agent-qa-002` is the second agent of role QA."""
    agents: list[Agent] = []
    numbers = Counter[str]()
    for entry in options.agents:
        own = AgentOptions(role=entry) if isinstance(entry, str) else entry
        role = own.role.lower()
        numbers[role] += 1
        diverse = options.diversity and bool(agents)
        temperature = own.temperature
        if temperature is None:
            factor = DIVERSITY if diverse else 1.0
            temperature = round(min(options.temperature * factor, MOST_TEMPERATURE), 6)
        prompt = options.roles.get(own.role) or ROLES.get(own.role) or f"You are a {own.role} expert."
        agent_id = f"agent-{role}-{numbers[role]:03}"
        agents.append(Agent(agent_id, own.role, prompt, own.model or options.model or "", temperature, diverse))
    return agents


def _check(options: PanelOptions) -> None:
    roles = [*ROLES, *options.roles]
    for name in options.roles:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
            raise ValueError(f"roles: {quoted(name)} cannot be a role; take letters, digits, - and _, a letter first.")
    for index, entry in enumerate(options.agents):
        role, model = (entry, None) if isinstance(entry, str) else (entry.role, entry.model)
        if role not in roles:
            raise ValueError(
                f"agents.{index}: No role is named {quoted(role)}. Did you mean '{nearest(role, roles)}'? "
                f"The roles: {', '.join(dict.fromkeys(roles))}. Option `roles` declares others."
            )
        if not (model or options.model):
            raise ValueError(f"model: Agent {index + 1} ({role}) has no model, and option `model` names none.")
    if options.rounds and len(options.agents) < 2:
        raise ValueError("rounds: A round needs two agents or more; take rounds 0 for a single one.")
    if options.judge is not None:
        low, high = options.judge.range
        if low >= high:
            raise ValueError(f"judge.range: The lowest mark {low} is not below the highest {high}.")
        authors = {agent.model for agent in agents_of(options)}
        if options.judge.model in authors and not options.judge.allow_author:
            raise ValueError(
                f"judge.model: {quoted(options.judge.model)} is the model of an agent, too. Take another model, or "
                "set judge.allow_author."
            )
    for index, check in enumerate(map(_check_of, options.checks)):
        if check.gate in OF_ANSWERS:
            raise ValueError(f"checks.{index}: Gate {quoted(check.gate)} needs more than the text of a proposal.")
    if options.extract is not None:
        try:
            extracts.check(options.extract)
        except ValueError as error:
            raise ValueError(f"extract: {error}") from error
    for prompt, own in PLACES.items():
        places = (*COMMON_PLACES, *own)
        for name in PLACE.findall(getattr(options.prompts, prompt)):
            if name not in places:
                raise ValueError(
                    f"prompts.{prompt}: There is no place {{{name[:100]}}}. Did you mean {{{nearest(name, places)}}}?"
                )


def _stages(options: PanelOptions) -> list[str]:
    rounds = [f"{kind}-{number}" for number in range(1, options.rounds + 1) for kind in ("critique", "revise")]
    return ["propose", *rounds, *(["judge"] if options.judge else [])]


def _expected(options: PanelOptions) -> list[float]:
    """Return the requests of all stages but the judge's, whose comparisons depend on its marks."""
    return [float(len(options.agents))] * (1 + 2 * options.rounds)


def _probe(options: PanelOptions) -> list[Ask | Score | Check]:
    asks = [
        Ask("propose", "A task", model=agent.model, temperature=agent.temperature, max_tokens=options.max_tokens)
        for agent in agents_of(options)
    ]
    judge = [] if options.judge is None else [_mark("A task", options.judge, options)]
    return [*asks, *judge, *(Check(check.gate, "", check.value) for check in map(_check_of, options.checks))]


def _events(item: EndedItem, options: PanelOptions) -> list[dict[str, Any]]:
    return events_of(item, agents_of(options))


def _finish(results: Results, options: PanelOptions) -> Report:
    return report(results, agents_of(options), options.rounds, options.extract, scored=bool(options.checks))


class _Words:
    """The messages of one item."""

    def __init__(self, item: Item, options: PanelOptions) -> None:
        messages = item.messages
        leading = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages) - 1)
        system = [message["content"] for message in messages[:leading]]
        self._system = [text for text in (item.system, *system) if text]
        self._before = messages[leading:-1]
        content = messages[-1]["content"]
        parts = content if isinstance(content, list) else []
        self._media = [part for part in parts if part.get("type") != "text"]
        text = "\n".join(part["text"] for part in parts if part.get("type") == "text") if parts else content
        self._prompts = options.prompts
        self._places = {
            "task": text,
            "rubric": _section("Rubric", _constraint(item, options, "rubric")),
            "requirements": _section("Requirements", _constraint(item, options, "requirements")),
            "metadata": _section("Further information", _constraint(item, options, "metadata")),
            "hint": item.hint or "",
        }

    def chat(self, agent: Agent | None, prompt: str, **places: object) -> Messages:
        """Return the messages to an agent, or to the judge, with the prompt of this name."""
        paragraphs = [*self._system]
        if agent is not None:
            diversity = self._filled("diversity") if agent.diverse else ""
            paragraphs.append(self._filled("system", role=agent.prompt, diversity=diversity))
        text = self._filled(prompt, **places)
        content = [*self._media, {"type": "text", "text": text}] if self._media else text
        system = [{"role": "system", "content": "\n\n".join(paragraphs)}] if paragraphs else []
        return [*system, *self._before, {"role": "user", "content": content}]

    def _filled(self, prompt: str, **places: object) -> str:
        template: str = getattr(self._prompts, prompt)
        paragraphs = (fill(paragraph, self._places | places) for paragraph in template.split("\n\n"))
        return "\n\n".join(paragraph for paragraph in paragraphs if paragraph.strip())


def _constraint(item: Item, options: PanelOptions, name: str) -> Any:
    """Return the item's own rubric, requirements or metadata, of its column or of `constraints`; else the option."""
    constraints = item.columns.get("constraints")
    own = constraints.get(name) if isinstance(constraints, Mapping) else None
    return next((value for value in (item.columns.get(name), own) if value is not None), getattr(options, name))


def _section(title: str, value: Any) -> str:
    """Return a value under its title, a list or an object with a line for each element; nothing for nothing."""
    if not value:
        return ""
    if isinstance(value, Mapping):
        value = [f"{name}: {_shown(element)}" for name, element in value.items()]
    lines = [f"- {_shown(element)}" for element in value] if isinstance(value, list) else [_shown(value)]
    return "\n".join([f"{title}:", *lines])


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _failure(answer: Answer) -> tuple[str, str] | None:
    """Return code and message of an answer that cannot be used, None for one that can. A text of blanks is none."""
    if answer.ok:
        return None if answer.text.strip() else ("empty_answer", "The answer has no text.")
    error = answer.error or {}
    return str(error.get("code") or "no_answer"), str(error.get("message") or "There is no answer.")


def _said(stage: str, number: int, author: str, about: str, reader: str | None, answer: Answer) -> dict[str, Any]:
    """Return a message of the dialogue of round `number`. `about` is the agent whose proposal it is about."""
    failure = _failure(answer)
    return {
        "stage": stage,
        "round": number,
        "author": author,
        "reader": reader,
        "about": about,
        "text": None if failure else answer.text,
        "error": {"code": failure[0], "message": failure[1]} if failure else None,
        "tokens": answer.input_tokens + answer.output_tokens,
        "duration_seconds": answer.seconds,
    }


def _mark(content: Messages | str, judge: JudgeOptions, options: PanelOptions) -> Ask:
    low, high = judge.range
    mark = {"type": "integer", "minimum": low, "maximum": high}
    schema = {"type": "object", "properties": {"mark": mark}, "required": ["mark"], "additionalProperties": False}
    structure: dict[str, Any] = {"json": schema} if judge.structured else {}
    return Ask("judge", content, model=judge.model, temperature=0.0, max_tokens=options.max_tokens, **structure)


def _compare(content: Messages, judge: JudgeOptions, options: PanelOptions) -> Ask:
    structure: dict[str, Any] = {"choice": ["1", "2"]} if judge.structured else {}
    return Ask("judge", content, model=judge.model, temperature=0.0, max_tokens=options.max_tokens, **structure)


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
        self._words = _Words(item, options)

    def propose(self) -> _Part[None]:
        """Ask every agent for a proposal."""
        answers = yield [self._ask("propose", agent, "task") for agent in self.agents]
        for agent, answer in zip(self.agents, answers, strict=True):
            self.dialogue.append(_said("propose", 0, agent.id, agent.id, None, answer))
            if failure := _failure(answer):
                self.failed.append({"agent_id": agent.id, "error": failure[1], "error_type": failure[0]})
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
            if not _failure(critique):
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
                if _failure(revision):
                    self.counters["kept_proposals"] += 1
                else:
                    draft.writer, draft.answer = reviser, revision
        for draft in self.drafts:
            draft.versions.append(draft.content)

    def judge(self, judge: JudgeOptions) -> _Part[None]:
        """Let the judge mark each proposal, and compare the two best in both orders if their marks are near."""
        answers = yield [
            _mark(self._words.chat(None, "judge", proposal=draft.content, low=low, high=high), judge, self.options)
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
            _compare(self._words.chat(None, "compare", first=first.content, second=second.content), judge, self.options)
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
        checks = [_check_of(check) for check in self.options.checks]
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
            self._words.chat(agent, prompt, **places),
            model=agent.model,
            temperature=agent.temperature,
            max_tokens=self.options.max_tokens,
        )


@recipe(
    "panel",
    PanelOptions,
    _stages,
    probe=_probe,
    check=_check,
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
