"""Marks on what a simulated engine answers, whatever the engine itself put there."""

from __future__ import annotations

from dataclasses import replace

from batchyard import json_lines
from inference.engine import Engine, EngineAnswer

_DATA = b"data: "


def marked(answer: EngineAnswer, engine: Engine) -> EngineAnswer:
    """Return the answer; a simulated engine's is marked in its response body."""
    if not type(engine).simulated or answer.status_code != 200 or answer.body is None:
        return answer
    return replace(answer, body=answer.body | {"simulated": True})


def marked_events(events: bytes) -> bytes:
    """Return server-sent events of a simulated engine with each object marked."""
    lines = events.split(b"\n")
    for number, line in enumerate(lines):
        if line.startswith(_DATA + b"{"):
            lines[number] = _DATA + json_lines.dumps({**json_lines.loads(line[len(_DATA) :]), "simulated": True})
    return b"\n".join(lines)


def marked_versions(engine: Engine) -> dict[str, str]:
    """Return the engine's versions; of a simulated one marked, and without a hash of weights.

    They are plain text: that of torch is of a class of torch, and whoever unpickled it would import all of that.
    """
    versions = {key: str(value) for key, value in engine.versions().items()}
    if not type(engine).simulated:
        return versions
    return {key: value for key, value in versions.items() if key != "model_sha256"} | {"simulated": "true"}
