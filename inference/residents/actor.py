"""Resident engines: a detached Ray actor per replica keeps one warm, until it has had no work for a while.

A resident's name holds all that its answers depend on, so that a new version or configuration gets a new one and the
old one runs out of work and stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import time
import uuid
from dataclasses import replace
from typing import Any, NamedTuple

import orjson
import ray

from batchyard.errors import ConfigurationError, EngineDied, EngineStartError
from batchyard.models import ModelSpec
from inference.engine import Answer, Engine
from inference.engines import orphan_reaper
from inference.engines.registry import capabilities, check_arguments, engine_class
from inference.residents.admission import AdmissionQueue, Rank
from inference.residents.kept_replies import KeptReplies, Reply, reply
from inference.residents.session import EngineSession

ENDED = "engine_died"
PERMIT_SECONDS = 30.0
"""A caller that was given the engine alone and asks nothing for this long has lost it."""
IDLE_SECONDS = 2.0
"""An engine without work for this long makes way for another: between two segments of a batch it is less."""
RUN_SECONDS = 30.0
"""The same while a run goes on, which asks again: longer than that its caller is late only if it is dead."""

log = logging.getLogger(__name__)


class EngineActor:
    """The actor: one engine, started once, asked in lists, ended by itself after a while without work."""

    def __init__(self, name: str, spec: ModelSpec, request_timeout: float) -> None:
        self._name = name
        self._spec = spec
        self._request_timeout = request_timeout
        self._engine: Engine | None = None
        self._starting: asyncio.Task[Engine] | None = None
        self._admission = AdmissionQueue(spec.in_flight())
        self._permits: dict[str, asyncio.TimerHandle] = {}
        self._work: dict[str, set[asyncio.Task[Any]]] = {}
        self._ranks: dict[str, float] = {}
        self._replies = KeptReplies()
        self._calls = 0
        self._asked = 0
        self._busy_seconds = 0.0
        self._busy_since = 0.0
        self._over = False
        self._idle_seconds = 0.0
        self._used_at = time.monotonic()
        self._idle_watch: asyncio.Task[None] | None = None

    async def ready(self, idle_seconds: float) -> Started | None:
        """Start the engine if it is not, and wait for it; None when it is just stopping.

        Raises:
            EngineStartError: with the engine's own reason; the actor is of no use then.
        """
        if self._over:
            return None
        self._idle_seconds = idle_seconds
        self._used_at = time.monotonic()
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        engine = await asyncio.shield(self._starting)
        self._used_at = time.monotonic()
        if self._idle_watch is None:
            self._idle_watch = asyncio.create_task(self._stop_when_idle())
        return Started(marked_versions(engine), self._spec.in_flight(engine.capacity))

    async def _start(self) -> Engine:
        try:
            check_arguments(self._spec)
        except ConfigurationError as error:
            raise EngineStartError(error.message) from error
        engine = engine_class(self._spec.engine)(self._spec, self._request_timeout)
        if engine.has_processes:
            mark = f"{ray.get_runtime_context().get_node_id()}/{self._name}"
            orphan_reaper.reap(mark)  # what an earlier resident of this name left behind
            orphan_reaper.start(mark)
        await engine.start()
        # What is there now stays: each full collection would look through all of torch and the engine.
        gc.collect()
        gc.freeze()
        self._admission = AdmissionQueue(self._spec.in_flight(engine.capacity))
        self._engine = engine
        return engine

    async def reserve(self) -> str | None:
        """Wait for the engine to be empty and keep it for one `answer` with the permit returned; None: it is over."""
        with self._busy():
            await self._admission.drain()
        if self._over:
            self._admission.reopen()
            return None
        if self._engine is not None:
            self._engine.answered_at = time.monotonic()
        permit = uuid.uuid4().hex
        self._permits[permit] = asyncio.get_running_loop().call_later(PERMIT_SECONDS, self._give_back, permit)
        return permit

    def _give_back(self, permit: str) -> None:
        if self._permits.pop(permit, None) is not None:
            self._admission.reopen()

    async def answer(
        self,
        run: EngineSession,
        position: int,
        endpoint: str,
        lines: list[int],
        bodies: list[str],
        permit: str | None = None,
    ) -> list[Reply] | None:
        """A reply for each body (JSON), in the same order; None: the engine is over and was asked nothing.

        `position` is where in its run the list stands: what comes first there is asked first. `lines` are the names of
        the bodies: one that an earlier run of the same work has asked is not asked again. With a permit of `reserve`
        they are, and as the only requests in the engine. A request that was in the engine as it ended has the error
        code `engine_died`.
        """
        if self._over or self._engine is None:
            return None
        task = asyncio.current_task()
        assert task is not None
        tasks = self._work.setdefault(run.name, set())
        tasks.add(task)
        try:
            with self._busy():
                if permit is None:
                    rank = self._rank(run, position)

                    async def ask(places: list[int]) -> list[Reply] | None:
                        async with self._admission.admit(len(places), rank):
                            return await self._ask(endpoint, [bodies[place] for place in places])

                    return await self._replies.collect(run, lines, ask)
                timer = self._permits.pop(permit, None)
                if timer is None:
                    await self._admission.drain()
                else:
                    timer.cancel()
                try:
                    return await self._ask(endpoint, bodies)
                finally:
                    self._admission.reopen()
        finally:
            tasks.discard(task)
            if not tasks:
                self._work.pop(run.name, None)

    def _rank(self, run: EngineSession, position: int) -> Rank:
        """Runs go in the order in which they would be done if each had the engine alone from its begin on.

        So a run that began before one of its size has the whole engine, which keeps its prefixes cached and lets the
        other take over when it drains; a small one need not wait for a big one, and a big one waits no longer than it
        would have run.
        """
        if run.name not in self._ranks:
            busy = self._busy_seconds + time.monotonic() - self._busy_since
            self._ranks[run.name] = time.monotonic() + (run.rows * busy / self._asked if self._asked else 0.0)
        return self._ranks[run.name], position

    async def _ask(self, endpoint: str, bodies: list[str]) -> list[Reply] | None:
        if self._over or self._engine is None:
            return None
        self._engine.answered_at = time.monotonic()
        self._asked += len(bodies)
        requests = [orjson.loads(body) for body in bodies]
        try:
            answers = await self._engine.answer(endpoint, requests)
        except EngineDied as death:
            self._over = True
            answers = [Answer.failed(ENDED, death.message)] * len(bodies)
        if any(answer.error is not None and answer.error["code"] == ENDED for answer in answers):
            self._over = True
        self._engine.answered_at = time.monotonic()
        return [reply(marked(answer, self._engine)) for answer in answers]

    @contextlib.contextmanager
    def _busy(self) -> Any:
        if self._calls == 0 and self._engine is not None:
            self._engine.answered_at = time.monotonic()
        if self._calls == 0:
            self._busy_since = time.monotonic()
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._used_at = time.monotonic()
            if self._calls == 0:
                self._busy_seconds += self._used_at - self._busy_since

    async def quiet(self) -> float:
        """Seconds since the engine last showed work, or since it got some; 0 when it has none."""
        if self._admission.inside == 0 or self._engine is None:
            return 0.0
        return time.monotonic() - self._engine.answered_at

    async def drop(self, run: str) -> None:
        """Cancel what a run still has in here: nobody waits for it any more."""
        self._ranks.pop(run, None)
        self._replies.forget(run)
        for task in list(self._work.get(run, ())):
            task.cancel()

    async def load(self) -> int:
        """Requests in the engine and waiting for it."""
        return self._admission.inside + self._admission.waiting

    async def state(self) -> dict[str, Any]:
        """Model, GPUs, process id, requests asked so far and in the engine now, seconds without work, endpoints."""
        return {
            "model": self._spec.name,
            "gpus": gpus(self._spec),
            "pid": os.getpid(),
            "asked": self._asked,
            "in_flight": self._admission.inside,
            "idle_seconds": 0.0 if self._calls else time.monotonic() - self._used_at,
            "endpoints": self._engine.endpoints() if self._engine else [],
        }

    async def stop(self) -> None:
        """End the engine, its processes included. The actor itself is ended by who called."""
        self._over = True
        if self._engine is not None:
            await self._engine.stop()

    async def stop_if_idle(self) -> bool:
        """Take no more work, and stop, if there is none now and none soon to be expected; whether it was so."""
        silence = time.monotonic() - self._used_at
        at_work = self._engine is None or self._calls > 0 or bool(self._permits)
        if at_work or silence < (RUN_SECONDS if self._ranks else IDLE_SECONDS):
            return False
        await self.stop()
        return True

    async def _stop_when_idle(self) -> None:
        while not self._over:
            left = self._idle_seconds - (time.monotonic() - self._used_at)
            if self._calls == 0 and not self._permits and left <= 0:
                log.info("engine stops: no work", extra={"engine": self._name, "idle_seconds": self._idle_seconds})
                await self.stop()
                ray.kill(ray.get_runtime_context().current_actor)
                return
            await asyncio.sleep(max(min(left, 5.0), 0.05))


class Started(NamedTuple):
    """What an engine that has started says of itself: its versions, and how many requests it should have at once."""

    versions: dict[str, str]
    in_flight: int


def marked(answer: Answer, engine: Engine) -> Answer:
    """Mark an answer of a simulated engine in its response body, whatever the engine itself put there."""
    if not type(engine).simulated or answer.status_code != 200 or answer.body is None:
        return answer
    return replace(answer, body=answer.body | {"simulated": True})


def marked_versions(engine: Engine) -> dict[str, str]:
    """The engine's versions, marked if it is simulated. No weights answer then, so nothing may claim their hash."""
    versions = engine.versions()
    if not type(engine).simulated:
        return versions
    return {key: value for key, value in versions.items() if key != "model_sha256"} | {"simulated": "true"}


def gpus(spec: ModelSpec) -> float:
    """GPUs of one of the model's replicas."""
    if spec.num_gpus is not None:
        return spec.num_gpus
    need = capabilities(spec.engine).gpus(spec)
    return need if need and ray.cluster_resources().get("GPU") else 0
