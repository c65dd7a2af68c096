"""What keeps engines apart and ends what they leave behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import psutil
import pytest

from batchyard.models import ModelSpec
from inference.engine import Answer
from inference.engines import orphan_reaper
from inference.engines.echo import Echo
from inference.residents import actor, directory
from inference.residents.admission import AdmissionQueue, Rank
from inference.residents.kept_replies import KeptReplies, Reply
from inference.residents.session import EngineSession
from tests.support.rows import until

OWNER = """
import subprocess, sys, time
from inference.engines import orphan_reaper
orphan_reaper.start(sys.argv[1])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_killed_owner_takes_its_engines_processes_along() -> None:
    mark = uuid.uuid4().hex
    owner = subprocess.Popen([sys.executable, "-c", OWNER, mark], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    until(lambda: ended(child))


def test_only_processes_with_the_mark_are_ended() -> None:
    marks = [uuid.uuid4().hex, uuid.uuid4().hex]
    ours, others = (
        subprocess.Popen(
            [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"],
            env={**os.environ, orphan_reaper.TAG: mark},
            stdout=subprocess.PIPE,
        )
        for mark in marks
    )
    for process in (ours, others):
        assert process.stdout is not None and process.stdout.readline()
    assert orphan_reaper.reap(marks[0]) == 1
    ours.wait(10)
    assert others.poll() is None
    assert orphan_reaper.reap(marks[1]) == 1
    others.wait(10)


def soon(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 5))


def test_the_gate_lets_in_what_fits_first_come_first_served() -> None:
    async def scene() -> list[str]:
        gate, log = AdmissionQueue(4), []
        doors = {name: asyncio.Event() for name in "abc"}

        async def enter(name: str, requests: int) -> None:
            async with gate.admit(requests, (0.0, 0)):
                log.append(name)
                await doors[name].wait()

        tasks = [asyncio.create_task(enter("a", 3)), asyncio.create_task(enter("b", 9))]
        tasks.append(asyncio.create_task(enter("c", 1)))
        await asyncio.sleep(0)
        assert log == ["a"], "b is bigger than the gate and waits for all of it; c does not overtake"
        doors["a"].set()
        doors["b"].set()
        doors["c"].set()
        await asyncio.gather(*tasks)
        assert gate.inside == 0
        return log

    assert soon(scene()) == ["a", "b", "c"]


def test_the_gate_lets_in_the_lowest_rank_first() -> None:
    async def scene() -> list[Rank]:
        gate, log = AdmissionQueue(2), []

        async def enter(rank: Rank) -> None:
            async with gate.admit(1, rank):
                log.append(rank)

        await gate.drain()
        ranks: list[Rank] = [(2.0, 0), (1.0, 32), (1.0, 0), (3.0, 0)]
        tasks = [asyncio.create_task(enter(rank)) for rank in ranks]
        await asyncio.sleep(0)
        gate.reopen()
        await asyncio.gather(*tasks)
        return log

    assert soon(scene()) == [(1.0, 0), (1.0, 32), (2.0, 0), (3.0, 0)]


def test_who_has_the_gate_alone_is_alone_and_a_cancelled_wait_blocks_nobody() -> None:
    async def scene() -> None:
        gate = AdmissionQueue(4)
        await gate.drain()
        waiting = asyncio.create_task(gate.drain())
        after = asyncio.create_task(gate._enter(1, (0.0, 0)))
        await asyncio.sleep(0)
        assert not waiting.done() and not after.done()
        waiting.cancel()
        gate.reopen()
        await after
        assert gate.inside == 1

    soon(scene())


async def said(places: list[int]) -> list[Reply]:
    return [(200, str(place).encode(), None, 0, 0, 0) for place in places]


def test_a_line_is_asked_once_for_all_runs_of_the_same_work_until_one_of_them_is_over() -> None:
    async def scene() -> None:
        replies, asked = KeptReplies(), Counter[int]()
        first, second = EngineSession("first", "work", 4, 4), EngineSession("second", "work", 4, 4)

        async def collect(run: EngineSession, lines: list[int]) -> list[Reply] | None:
            async def ask(places: list[int]) -> list[Reply]:
                asked.update(lines[place] for place in places)
                await asyncio.sleep(0)
                return await said([lines[place] for place in places])

            return await replies.collect(run, lines, ask)

        took = await asyncio.gather(collect(first, [1, 2]), collect(second, [3, 2, 1]), collect(second, [4]))
        assert took == [await said([1, 2]), await said([3, 2, 1]), await said([4])]
        assert asked == {1: 1, 2: 1, 3: 1, 4: 1}
        await collect(EngineSession("other", "other work", 4, 4), [1])
        assert asked[1] == 2, "another work's line is another request"
        replies.forget("first")
        await collect(second, [1])
        assert asked[1] == 2, "the second run goes on"
        replies.forget("second")
        await collect(second, [1])
        assert asked[1] == 3

    soon(scene())


def test_what_a_run_takes_along_as_it_is_cancelled_or_fails_is_asked_again() -> None:
    async def scene() -> None:
        replies, first, second = (
            KeptReplies(),
            EngineSession("first", "work", 4, 4),
            EngineSession("second", "work", 4, 4),
        )
        asked = asyncio.Event()

        async def never(_: list[int]) -> list[Reply]:
            asked.set()
            await asyncio.Event().wait()
            return []

        async def broken(_: list[int]) -> list[Reply]:
            raise OSError("broken")

        cancelled = asyncio.create_task(replies.collect(first, [0, 1], never))
        failing = asyncio.create_task(replies.collect(first, [2, 3], broken))
        waiting = asyncio.create_task(replies.collect(second, [0, 1], said))
        await asked.wait()
        assert not waiting.done()
        cancelled.cancel()
        assert await waiting == await said([0, 1])
        with pytest.raises(OSError, match="broken"):
            await failing
        assert await replies.collect(second, [2, 3], said) == await said([0, 1])

    soon(scene())


def test_of_one_work_no_more_replies_are_kept_than_may_be_on_their_way() -> None:
    async def scene() -> None:
        replies, run, asked = KeptReplies(), EngineSession("run", "work", 100, 2), 0

        async def ask(places: list[int]) -> list[Reply]:
            nonlocal asked
            asked += 1
            return await said(places)

        for line in range(20):
            await replies.collect(run, [line], ask)
        await replies.collect(run, [19], ask)
        assert asked == 20
        await replies.collect(run, [0], ask)
        assert asked == 21

    soon(scene())


def test_a_residents_name_holds_all_that_its_answers_depend_on() -> None:
    spec = ModelSpec(name="a:b", engine="echo")
    other = spec.model_copy(update={"engine_args": {"latency_ms": 1}})
    names = {directory.actor_name(one, timeout, 0) for one in (spec, other) for timeout in (1, 2)}
    assert len(names) == 4
    assert {directory._model(name) for name in names} == {"a:b"}


class Pretender(Echo):
    """A simulated engine that claims to be a model."""

    def versions(self) -> dict[str, str]:
        return {"engine": "pretender", "model_sha256": "0" * 64, "simulated": "false"}


class Model(Echo):
    """An engine whose class says that it runs a model."""

    simulated = False


def test_answers_are_marked_by_what_the_engines_class_says() -> None:
    spec = ModelSpec(name="m", engine="echo")
    answer, refusal = Answer(200, {"choices": [], "simulated": False}), Answer.refused("no")
    simulated, real = Pretender(spec, 1.0), Model(spec, 1.0)
    assert actor.marked(answer, simulated).body == {"choices": [], "simulated": True}
    assert actor.marked(refusal, simulated) == refusal
    assert actor.marked(answer, real) == answer
    assert actor.marked_versions(simulated) == {"engine": "pretender", "simulated": "true"}
    assert actor.marked_versions(real) == real.versions()
