"""Options of recipe `panel`, the agents that they describe, and the messages made of their prompts."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from batchyard.recipes import BASIC, Item, Judgement, Messages, NestedOptions, Options
from batchyard.wording import fill, nearest, quoted
from recipes.gates import OF_ANSWERS
from recipes.options import as_gate, check_extract, check_places
from recipes.panel.events import Agent
from recipes.reports import as_text

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


PanelCheck = Annotated[CheckOptions, BeforeValidator(as_gate, json_schema_input_type=str | CheckOptions)]


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
        ["DEV", "QA", "ARCHITECT"],
        min_length=1,
        max_length=64,
        description="Roles, or {role, model, temperature}",
        json_schema_extra=BASIC,
    )
    model: str | None = Field(None, description="Model of the agents that name none", json_schema_extra=BASIC)
    rounds: int = Field(
        1, ge=0, le=5, description="How often all proposals are criticised and revised", json_schema_extra=BASIC
    )
    temperature: float = Field(0.7, ge=0, le=MOST_TEMPERATURE, description="Temperature of the first agent")
    max_tokens: int | None = Field(
        2048, ge=1, description="Most tokens of one answer; null: no limit is sent", json_schema_extra=BASIC
    )
    max_completion_tokens: int | None = Field(
        None, ge=1, description="Sent instead of max_tokens, to models that refuse that"
    )
    timeout: float | None = Field(60, gt=0, description="Most seconds of one request in its engine")
    diversity: bool = Field(True, description="Agents after the first are told to differ, at 1.3 times the temperature")
    reviser: Literal["author", "critic"] = Field("author", description="Who revises a proposal")
    roles: dict[str, str | None] = Field({}, description="Roles of your own: name and prompt, or null for an expert")
    rubric: str | list[str] | dict[str, Any] | None = Field(None, description="How proposals will be judged")
    requirements: list[str] = Field([], description="What proposals have to meet")
    metadata: dict[str, Any] = Field({}, description="What else agents are to know")
    prompts: Prompts = Field(Prompts(), description="Texts of the messages, with places such as {task}")
    judge: JudgeOptions | None = Field(None, description="A model that marks the proposals", json_schema_extra=BASIC)
    notify: bool = Field(False, description="Send an event for each task to webhooks, for up to 1,000 tasks")
    checks: Judgement[list[PanelCheck]] = Field(
        [], description="Gates: `name:value` or {gate, value, weight}", json_schema_extra=BASIC
    )
    extract: Judgement[str | None] = Field(None, description="What of a proposal is its answer, such as last_number")

    def named_columns(self) -> set[str]:
        """Return the columns that options name, and those that stand beside the task."""
        return super().named_columns() | {"rubric", "requirements", "metadata", "constraints"}

    @property
    def limits(self) -> dict[str, Any]:
        """What every request says of its answer's length."""
        name = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        limit: int | None = getattr(self, name)
        return {} if limit is None else {name: limit}


def agents_of(options: PanelOptions) -> list[Agent]:
    """Return the agents in order, with their ids: `agent-qa-002` is the second agent of role QA."""
    agents: list[Agent] = []
    numbers = Counter[str]()
    for entry in options.agents:
        agent = AgentOptions(role=entry) if isinstance(entry, str) else entry
        role = agent.role.lower()
        numbers[role] += 1
        diverse = options.diversity and bool(agents)
        temperature = agent.temperature
        if temperature is None:
            factor = DIVERSITY if diverse else 1.0
            temperature = round(min(options.temperature * factor, MOST_TEMPERATURE), 6)
        prompt = options.roles.get(agent.role) or ROLES.get(agent.role) or f"You are a {agent.role} expert."
        agent_id = f"agent-{role}-{numbers[role]:03}"
        agents.append(Agent(agent_id, agent.role, prompt, agent.model or options.model or "", temperature, diverse))
    return agents


def check(options: PanelOptions) -> None:
    """Raise ValueError, with the path of the option, for options that cannot be."""
    roles = [*ROLES, *options.roles]
    for name in options.roles:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
            raise ValueError(f"roles: {quoted(name)} cannot be a role; take letters, digits, - and _, a letter first.")
    for index, entry in enumerate(options.agents):
        role, model = (entry, None) if isinstance(entry, str) else (entry.role, entry.model)
        if role not in roles:
            hint = f" Did you mean '{near}'?" if (near := nearest(role, roles)) else ""
            raise ValueError(
                f"agents.{index}: No role is named {quoted(role)}.{hint} "
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
    for index, check in enumerate(options.checks):
        if check.gate in OF_ANSWERS:
            raise ValueError(f"checks.{index}: Gate {quoted(check.gate)} needs more than the text of a proposal.")
    check_extract("extract", options.extract)
    for prompt, places in PLACES.items():
        check_places(f"prompts.{prompt}", getattr(options.prompts, prompt), (*COMMON_PLACES, *places))


class PanelMessages:
    """The messages of one item."""

    def __init__(self, item: Item, options: PanelOptions) -> None:
        messages = item.messages
        leading = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages) - 1)
        system = [message.get("content") for message in messages[:leading]]
        self._system = [text for text in (item.system, *system) if text]
        self._before = messages[leading:-1]
        content = messages[-1].get("content") or ""
        parts = content if isinstance(content, list) else []
        self._media = [part for part in parts if part.get("type") != "text"]
        text = "\n".join(part["text"] for part in parts if part.get("type") == "text") if parts else content
        self._prompts = options.prompts
        titles = {"rubric": "Rubric", "requirements": "Requirements", "metadata": "Further information"}
        sections = {name: _section(title, name, item, options) for name, title in titles.items()}
        self._places = {"task": text, "hint": item.hint or "", **sections}

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


def _section(title: str, name: str, item: Item, options: PanelOptions) -> str:
    """Return an item's rubric, requirements or metadata under a title, a line for each element; nothing for nothing.

    The column of that name comes first, then the field of `constraints`, then the option.
    """
    constraints = item.columns.get("constraints")
    constraint = constraints.get(name) if isinstance(constraints, Mapping) else None
    known = (value for value in (item.columns.get(name), constraint) if value is not None)
    value = next(known, getattr(options, name))
    if not value:
        return ""
    if isinstance(value, Mapping):
        value = [f"{key}: {as_text(element)}" for key, element in value.items()]
    lines = [f"- {as_text(element)}" for element in value] if isinstance(value, list) else [as_text(value)]
    return "\n".join([f"{title}:", *lines])
