"""What recipe panel tells clients of a task: an event for each agent, and one for the deliberation."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel

from batchyard.recipes import EndedItem


@dataclass(frozen=True)
class Agent:
    """One of the panel. `diverse`: it is told to differ from the others."""

    id: str
    role: str
    prompt: str
    model: str
    temperature: float
    diverse: bool


class _Event(BaseModel):
    """`timestamp` is when the task ended."""

    type: str
    task_id: str


class AgentCompleted(_Event):
    """An agent has a proposal. `duration_ms` is the time of its requests in the engine.

    `proposal`: content, author_id, author_role, model, temperature, tokens (in and out), finish_reason.
    """

    type: Literal["agent.response.completed"] = "agent.response.completed"
    agent_id: str
    role: str
    proposal: dict[str, Any]
    status: Literal["completed"] = "completed"
    duration_ms: float | None
    timestamp: datetime | None
    model: str
    diversity: bool


class AgentFailed(_Event):
    """An agent has no proposal."""

    type: Literal["agent.response.failed"] = "agent.response.failed"
    agent_id: str
    role: str
    status: Literal["failed"] = "failed"
    error: str
    error_type: str
    duration_ms: float | None
    timestamp: datetime | None


class Deliberation(BaseModel):
    """A task as `panel.jsonl` has it.

    Attributes:
        results: proposals with what they were ranked by: proposal; checks (gate, value, weight, passed, category,
            message); score; judge (mark, and comparison: won, lost or tied); rank. Best first.
        failed_agents: agents without a proposal: agent_id, error, error_type (the code of the error).
    """

    task_id: str
    status: str
    winner: str | None
    results: list[dict[str, Any]]
    failed_agents: list[dict[str, Any]]
    duration_ms: float | None


class DeliberationCompleted(Deliberation, _Event):
    """A task has at least one proposal."""

    type: Literal["deliberation.completed"] = "deliberation.completed"
    timestamp: datetime | None


class DeliberationFailed(Deliberation, _Event):
    """A task ended without a proposal, or before its panel was done."""

    type: Literal["deliberation.failed"] = "deliberation.failed"
    timestamp: datetime | None
    error: str
    error_type: str


def deliberation(item: EndedItem) -> Deliberation:
    begun, ended = item.started_at, item.ended_at
    ranked = ({name: each[name] for name in each if name != "scores"} for each in item.result.get("results", []))
    return Deliberation(
        task_id=item.custom_id,
        status=item.state,
        winner=item.result.get("winner"),
        results=list(ranked),
        failed_agents=item.result.get("failed_agents", []),
        duration_ms=None if begun is None or ended is None else round((ended - begun) * 1000, 3),
    )


def events_of(item: EndedItem, agents: Sequence[Agent]) -> list[dict[str, Any]]:
    """Return the events of a task that has ended, those of its agents in their order first."""
    task = deliberation(item)
    timestamp = None if item.ended_at is None else datetime.fromtimestamp(item.ended_at, UTC)
    proposals = {ranked["proposal"]["author_id"]: ranked["proposal"] for ranked in task.results}
    failures = {failed["agent_id"]: failed for failed in task.failed_agents}
    seconds: dict[str, list[float]] = {}
    for message in item.result.get("dialogue", []):
        if message["duration_seconds"] is not None:
            seconds.setdefault(message["author"], []).append(message["duration_seconds"])
    made: list[BaseModel] = []
    for agent in agents:
        durations = seconds.get(agent.id)
        common: dict[str, Any] = {
            "task_id": task.task_id,
            "agent_id": agent.id,
            "role": agent.role,
            "duration_ms": round(sum(durations) * 1000, 3) if durations else None,
            "timestamp": timestamp,
        }
        if proposal := proposals.get(agent.id):
            made.append(AgentCompleted(proposal=proposal, model=agent.model, diversity=agent.diverse, **common))
        elif failed := failures.get(agent.id):
            made.append(AgentFailed(error=failed["error"], error_type=failed["error_type"], **common))
    values = dict(task) | {"timestamp": timestamp}
    if item.state == "completed":
        made.append(DeliberationCompleted(**values))
    else:
        error = item.error or {}
        code = str(error.get("code") or item.state)
        made.append(DeliberationFailed(error=str(error.get("message") or code), error_type=code, **values))
    return [event.model_dump(mode="json") for event in made]
