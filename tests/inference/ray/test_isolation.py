"""A request that kills engines is found, and all others are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

from batchyard.errors import EngineDied
from batchyard.models import ModelSpec
from inference.ray.isolation import Isolation
from inference.ray.replicas import Replica, Replicas, RunRow
from inference.residents.replies import EngineReply


class Method:
    """A method of an actor: `remote` returns its arguments, which stand for the call."""

    def __init__(self, name: str) -> None:
        self._name = name

    def remote(self, *arguments: Any) -> tuple[str, tuple[Any, ...]]:
        return self._name, arguments


class Handle:
    reserve, answer_alone = Method("reserve"), Method("answer_alone")


class OneReplica:
    """The replicas of a run, as isolation sees them: one, whose engine dies of any body with `poison`."""

    def __init__(self) -> None:
        self.replica = Replica(0, handle=Handle())
        self.lost_as: list[str] = []
        self.runs: list[list[str]] = []

    def __iter__(self) -> Iterator[Replica]:
        return iter([self.replica])

    async def watch(self, _handle: Handle, call: tuple[str, tuple[Any, ...]]) -> Any:
        name, arguments = call
        if name == "reserve":
            return "permit"
        self.runs.append(arguments[1])
        if any("poison" in body for body in arguments[1]):
            raise EngineDied("killed")
        return [EngineReply(200, body.encode(), None) for body in arguments[1]]

    def lost(self, replica: Replica, _handle: Handle, _reason: str, _requests: int, following: str) -> None:
        self.lost_as.append(following)
        replica.handle = Handle()  # a fresh engine

    def put_back(self, replica: Replica, rows: list[RunRow]) -> None:
        replica.waiting.extendleft(reversed(rows))


def isolated(bodies: list[str]) -> tuple[dict[str, str | None], OneReplica]:
    """Let an engine die with these rows in it. Return why the engine died of each row, None if it was answered."""
    replicas, deaths = OneReplica(), dict[str, str | None]()

    def answer(row: RunRow, reply: EngineReply) -> None:
        assert row.body not in deaths, "answered twice"
        row.reply, deaths[row.body] = reply, reply.death

    isolation = Isolation(ModelSpec(name="m", engine="echo"), "/v1/completions", cast(Replicas, replicas), answer)
    rows = [RunRow(place, place, body, place, 1) for place, body in enumerate(bodies)]
    replica = replicas.replica
    replica.sent = {row.line: row for row in rows}
    isolation.engine_died(replica, replica.handle, "killed")

    async def run() -> None:
        while (group := isolation.next_group(replica)) is not None:
            await isolation.run_alone(replica, replica.handle, group)

    asyncio.run(run())
    return deaths, replicas


def test_the_request_that_kills_is_found_by_halves_and_the_others_are_answered() -> None:
    deaths, replicas = isolated(["a", "b", "poison", "d", "e", "f", "g", "h"])
    assert [body for body, death in deaths.items() if death is not None] == ["poison"]
    assert len(deaths) == 8
    assert [len(bodies) for bodies in replicas.runs if any("poison" in body for body in bodies)] == [8, 4, 2, 1, 1]
    assert replicas.lost_as[0] == "runs_alone" and replicas.lost_as[-1] == "request_fails"


def test_two_requests_that_kill_are_both_found() -> None:
    deaths, _ = isolated(["poison 1", "b", "c", "d", "poison 2"])
    assert {body for body, death in deaths.items() if death is not None} == {"poison 1", "poison 2"}


def test_requests_that_kill_nothing_are_all_answered_at_once() -> None:
    deaths, replicas = isolated(["a", "b", "c"])
    assert set(deaths.values()) == {None} and len(replicas.runs) == 1


def test_beside_another_replica_only_rows_of_a_second_death_are_suspects() -> None:
    replicas = OneReplica()
    other = Replica(1, handle=Handle())
    replicas.__class__ = type("Two", (OneReplica,), {"__iter__": lambda self: iter([self.replica, other])})
    isolation = Isolation(ModelSpec(name="m", engine="echo"), "/", cast(Replicas, replicas), lambda *_: None)
    first, again = RunRow(0, 0, "first", 0, 1), RunRow(1, 1, "again", 1, 1, deaths=1)
    replica = replicas.replica
    replica.sent = {0: first, 1: again}
    isolation.engine_died(replica, replica.handle, "killed")
    assert replica.suspects == [[again]] and list(replica.waiting) == [first]
