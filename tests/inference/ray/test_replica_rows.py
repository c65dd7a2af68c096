"""Replicas share a run's rows, and none waits for work while another has some."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from batchyard.errors import EngineError
from batchyard.models import ModelSpec
from inference.answers import Death
from inference.ray import replicas as module
from inference.ray.replicas import DEATHS_IN_A_ROW, Replica, Replicas, RunRow
from inference.residents.session import EngineSession, EngineTimeouts


def rows(number: int) -> list[RunRow]:
    return [RunRow(place, place, "{}", place, 2) for place in range(number)]


def positions(taken: list[RunRow]) -> list[int]:
    return [row.position for row in taken]


def in_a_run(
    scene: Callable[[Replicas, list[Replica]], None],
    *,
    number: int = 2,
    in_flight: int = 3,
    deaths: list[Any] | None = None,
    chosen: int | None = None,
) -> None:
    """Call a scene with the replicas of a run, all there, and with 12 rows."""

    async def run() -> None:
        spec = ModelSpec(name="m", engine="echo", replicas=number)
        session, timeouts = EngineSession("s", "key", 12, in_flight, replica=chosen), EngineTimeouts(1, 1, 1)
        replicas = Replicas(spec, session, timeouts, ([] if deaths is None else deaths).append)
        for replica in replicas:
            replica.handle = object()
        replicas.share(rows(12))
        scene(replicas, sorted(replicas, key=lambda replica: replica.waiting[0].position))

    asyncio.run(run())


def test_each_replica_takes_from_its_stretch_until_it_is_full() -> None:
    def scene(replicas: Replicas, by_stretch: list[Replica]) -> None:
        first, second = by_stretch
        assert positions(replicas.take(first)) == [0, 1, 2] and positions(replicas.take(second)) == [6, 7, 8]
        assert replicas.take(first) == [], "it is full"
        first.sent.pop(0)
        assert positions(replicas.take(first)) == [3]

    in_a_run(scene)


def test_a_replica_without_rows_takes_the_last_half_of_the_longest_stretch() -> None:
    def scene(replicas: Replicas, by_stretch: list[Replica]) -> None:
        first, second = by_stretch
        first.waiting.clear()
        assert positions(replicas.take(first)) == [9, 10, 11]
        second.handle, second.absent_since = None, time.monotonic()
        first.sent.clear()
        assert replicas.take(first) == [], "the other one may be back at once"
        second.absent_since -= module.SHARE_SECONDS
        assert positions(replicas.take(first)) == [6, 7, 8], "all that an absent one has"

    in_a_run(scene)


def test_rows_that_come_back_go_first_and_wake_all_replicas() -> None:
    def scene(replicas: Replicas, by_stretch: list[Replica]) -> None:
        first, returned = by_stretch[0], replicas.returned
        taken = replicas.take(first)
        first.sent.clear()
        replicas.put_back(first, taken[::-1])
        assert returned.done() and not replicas.returned.done()
        assert positions(replicas.take(first)) == [0, 1, 2]

    in_a_run(scene)


def test_engines_that_die_without_an_answer_end_the_run_and_an_answer_begins_the_count_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "actor_id", lambda handle: str(id(handle)))
    monkeypatch.setattr(module.ray, "kill", lambda _handle: None)
    deaths: list[Death] = []
    handles: list[object] = []

    def die(replicas: Replicas, replica: Replica) -> None:
        replica.handle = handle = object()
        handles.append(handle)  # so that no other has its id
        replicas.lost(replica, handle, "killed", 1, "runs_alone")
        replicas.lost(replica, handle, "killed", 1, "runs_alone")

    def scene(replicas: Replicas, by_stretch: list[Replica]) -> None:
        most = (3).bit_length() + DEATHS_IN_A_ROW
        for _ in range(most):
            die(replicas, by_stretch[0])
        replicas.answered()
        for _ in range(most):
            die(replicas, by_stretch[0])
        with pytest.raises(EngineError, match="without an answer between"):
            die(replicas, by_stretch[0])
        assert len(deaths) == len(handles), "each death is told once"
        assert deaths[-1].next == "ends_run"

    in_a_run(scene, number=1, deaths=deaths)


def test_a_run_of_one_replica_leaves_the_others_alone() -> None:
    def scene(replicas: Replicas, _: list[Replica]) -> None:
        (one,) = replicas
        assert (one.index, positions(replicas.take(one))) == (2, list(range(12)))

    in_a_run(scene, number=3, in_flight=12, chosen=2)
