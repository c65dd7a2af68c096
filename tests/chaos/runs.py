"""Runs of the job of a campaign, and what is audited of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from tests.chaos.in_flight import Requests, Running, cut_off, surplus


@dataclass
class Kill:
    """A kill: the segments that ran at it, and the requests that an engine had begun by then, with how often.

    `in_flight` has the requests that it may have cut off, once the job has ended.
    """

    kind: str
    segments: list[Running] = field(default_factory=list)
    begun: Counter[str] = field(default_factory=Counter)
    in_flight: Counter[str] = field(default_factory=Counter)


@dataclass
class Run:
    """A run of the job. Its `tag` begins the names of all its requests.

    Attributes:
        requests: how often each of its requests is made.
        seconds: from its creation to its end.
        probes: requests beside these, which are made as often as the reviewer is tried.
        calls: requests by name, as often as the engine has begun them.
        repeated: calls more than the requests that were made.
        surplus: those of them that no kill explains, by name.
        wrong: what is not as it must be.
        interrupted: items without some requests, as a call of a tool was interrupted.
        calls_in_flight: calls of tools under way at the kills.
    """

    tag: str
    requests: Counter[str]
    kills: list[Kill] = field(default_factory=list)
    seconds: float = 0.0
    results: bytes = b""
    probes: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    surplus: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    interrupted: dict[str, int] = field(default_factory=dict)
    tool_calls: int = 0
    calls_in_flight: int = 0

    @property
    def in_flight(self) -> int:
        return sum(kill.in_flight.total() for kill in self.kills)

    def audit(self, undisturbed: bytes, issued: Requests) -> None:
        """Compare the results with the undisturbed run's, and the engine's calls with the requests, one by one."""
        if self.results != (expected := without(undisturbed, self.interrupted)):
            self.wrong.append(_difference(self.results, expected))
        for kill in self.kills:
            kill.in_flight = cut_off(issued.unanswered(kill.segments), kill.begun)
        self.repeated = (self.calls - issued.times).total()
        self.surplus = surplus(self.calls, issued.times, [kill.in_flight for kill in self.kills])
        for what, names in (
            ("never asked", self.requests - self.calls),
            ("made up", self.calls.keys() - self.requests.keys()),
            ("computed again without a kill that cut them off", self.surplus),
        ):
            if names:
                self.wrong.append(f"{len(names)} requests were {what}: {', '.join(sorted(names)[:5])}")


def without(results: bytes, items: Collection[str]) -> bytes:
    """Return results without the lines of these items."""
    if not items:
        return results
    lines = results.splitlines(keepends=True)
    return b"".join(line for line in lines if json.loads(line)["custom_id"][1:] not in items)


def _difference(results: bytes, undisturbed: bytes) -> str:
    """Say how the results of a job differ from the undisturbed ones."""
    lines, expected = results.splitlines(), undisturbed.splitlines()
    for number, (line, right) in enumerate(zip(lines, expected, strict=False)):
        if line != right:
            return f"line {number + 1} of the results is {line.decode()[:500]}, undisturbed {right.decode()[:500]}"
    wanted = f"{len(expected)} and {len(undisturbed)}"
    return f"the results have {len(lines)} lines and {len(results)} bytes, undisturbed {wanted}"
