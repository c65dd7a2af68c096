"""What recipe panel tells clients of a task: an event for each agent, and one for the deliberation."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

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


def deliberation(item: EndedItem) -> dict[str, Any]:
    """Return a task as `panel.jsonl` has it.

    `results`: proposals with what they were ranked by, the best first: proposal; checks (gate, value, weight, passed,
    category, message); score; judge (mark, and comparison: won, lost or tied); rank. `failed_agents`: agents without a
    proposal.
    """
    begun, ended = item.started_at, item.ended_at
    ranked = ({name: each[name] for name in each if name != "scores"} for each in item.result.get("results", []))
    return {
        "task_id": item.custom_id,
        "status": item.state,
        "winner": item.result.get("winner"),
        "results": list(ranked),
        "failed_agents": item.result.get("failed_agents", []),
        "duration_ms": None if begun is None or ended is None else round((ended - begun) * 1000, 3),
    }


def events_of(item: EndedItem, agents: Sequence[Agent]) -> list[dict[str, Any]]:
    """Return the events of a task that has ended, those of its agents in their order first.

    `timestamp` is when the task ended, and an agent's `duration_ms` the time of its requests in the engine.
    """
    task = deliberation(item)
    ended = None if item.ended_at is None else datetime.fromtimestamp(item.ended_at, UTC).isoformat()
    timestamp = ended and ended.replace("+00:00", "Z")
    proposals = {ranked["proposal"]["author_id"]: ranked["proposal"] for ranked in task["results"]}
    failures = {failed["agent_id"]: failed for failed in task["failed_agents"]}
    seconds: dict[str, list[float]] = {}
    for message in item.result.get("dialogue", []):
        if message["duration_seconds"] is not None:
            seconds.setdefault(message["author"], []).append(message["duration_seconds"])
    events = []
    for agent in agents:
        durations = seconds.get(agent.id)
        named = {"task_id": item.custom_id, "agent_id": agent.id, "role": agent.role}
        times = {"duration_ms": round(sum(durations) * 1000, 3) if durations else None, "timestamp": timestamp}
        if proposal := proposals.get(agent.id):
            kept = {"proposal": proposal, "status": "completed", **times}
            event = {**named, **kept, "model": agent.model, "diversity": agent.diverse}
            events.append({"type": "agent.response.completed", **event})
        elif failed := failures.get(agent.id):
            error = {"error": failed["error"], "error_type": failed["error_type"]}
            events.append({"type": "agent.response.failed", **named, "status": "failed", **error, **times})
    event = {"type": "deliberation.completed", **task, "timestamp": timestamp}
    if item.state != "completed":
        reason = item.error or {}
        code = str(reason.get("code") or item.state)
        failure = {"error": str(reason.get("message") or code), "error_type": code}
        event |= {"type": "deliberation.failed", **failure}
    return [*events, event]
