"""Engine actors: one per replica keeps an engine warm until it has no work for a while.

An actor's name holds everything that its answers depend on. A new version or configuration gets a new actor, and the
old one runs out of work and stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import math
import time
import uuid
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from ray.actor import ActorHandle

from batchyard import json_lines
from batchyard.errors import ConfigurationError, EngineDied, EngineStartError
from batchyard.failures.reasons import concerns_memory, explained
from batchyard.logs import announce
from batchyard.models import CAPACITY, ModelSpec
from inference.engine import Engine
from inference.engines import orphan_reaper
from inference.engines.registry import capabilities, check_arguments, engine_class
from inference.progress import PROGRESS, RequestProgress
from inference.requests import media
from inference.requests.cache_need import CacheNeed, most_output
from inference.residents import memory_eviction, process
from inference.residents.admission import WHOLE, AdmissionQueue, Preempted, Rank
from inference.residents.batch_share import BatchShare
from inference.residents.directory import IDLE_SECONDS, NAMESPACE, actor_name
from inference.residents.kept_replies import KeptReplies, Mailbox
from inference.residents.memory import Memory
from inference.residents.replies import CLOSED, ENGINE_DIED, EngineReply, marked_versions, packed, replied
from inference.residents.session import EngineSession
from inference.residents.status import LiveAddress, ResidentStatus

if TYPE_CHECKING:
    from inference.residents.live_server import LiveServer

GATHER_SECONDS = 0.1
GATHER_SHARE = 4
"""Replies of this time go to their caller together, since each exchange costs milliseconds of CPU. But a quarter of
what the engine holds goes at once: half of that waits for its turn, so the engine never waits for the next requests."""
CACHE_SHARE = 0.9
"""Requests enter as long as their expected tokens fill no more of the engine's KV cache: nobody knows their lengths."""
DROPPED_SESSIONS = 100
"""The last ones are remembered: Ray's cancellation of a caller may be lost in a call of Ray's."""
PERMIT_SECONDS = 30.0
"""A reservation without a call expires after this long."""
RUN_SECONDS = 30.0
"""The same while a session is open: a caller that is silent for longer is dead."""
ENGINE_FIELDS = ("capacity", "preemptions", "cache_use", "prefix_tokens", "prefix_hits")
"""What a status has as the engine says it; null before its start."""
CPUS = 0.001
"""What an engine actor asks Ray for: so little that a thousand fit on one CPU, and never on a node that has none."""

log = logging.getLogger(__name__)


class EngineActor:
    """The actor: one engine, started once, that exchanges requests for replies. It ends itself when idle for long."""

    def __init__(self, name: str, spec: ModelSpec, request_timeout: float) -> None:
        self._name = name
        self._spec = spec
        self._request_timeout = request_timeout
        self._engine: Engine | None = None
        self._starting: asyncio.Task[Engine] | None = None
        self._unstarted: Engine | None = None
        self._started_at: float | None = None
        self._start_seconds: float | None = None
        self._process = process.identity()
        self._memory = Memory()
        self._admission = AdmissionQueue(spec.in_flight())
        self._live: LiveServer | None = None
        self._live_address: LiveAddress | None = None
        self._progress: dict[asyncio.Task[Any], RequestProgress] = {}
        # What it has computed of requests that lost their place to live ones, and computes again
        self._redone = Counter[str]()
        self._permits: dict[str, asyncio.TimerHandle] = {}
        self._mailboxes: dict[str, dict[str, Mailbox]] = {}
        self._needs: dict[str, CacheNeed] = {}
        self._ranks: dict[str, float] = {}
        self._replies = KeptReplies()
        self._dropped: deque[str] = deque(maxlen=DROPPED_SESSIONS)
        self._closed: deque[str] = deque(maxlen=DROPPED_SESSIONS)
        self._entering: defaultdict[str, set[asyncio.Task[Any]]] = defaultdict(set)
        self._calls = 0
        self._requests = 0
        self._busy_seconds = 0.0
        self._busy_since = 0.0
        self._over = False
        self._death: str | None = None
        self._idle_seconds = 0.0
        self._used_at = time.monotonic()
        self._idle_watch: asyncio.Task[None] | None = None

    async def ready(self, idle_seconds: float) -> StartedEngine | None:
        """Start the engine unless it runs, and wait for it; return None if it is stopping.

        Raises:
            EngineStartError: with the engine's reason; the actor cannot be used then.
            EngineDied: the same of an engine that ran.
        """
        if self._death is not None:
            raise EngineDied(self._death)
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
        in_flight = self._spec.in_flight(engine.capacity)
        return StartedEngine(marked_versions(engine), in_flight, engine.capacity, self._live_address)

    async def _start(self) -> Engine:
        began = time.monotonic()
        # `batchyard logs` knows by this line which model the output of this process is about.
        announce(log, "engine starts", model=self._spec.name, engine=self._spec.engine)
        try:
            check_arguments(self._spec)
        except ConfigurationError as error:
            raise EngineStartError(error.message) from error
        if not gpus(self._spec):
            await asyncio.to_thread(memory_eviction.evict_idle, self._spec)
        engine = self._unstarted = engine_class(self._spec.engine)(self._spec, self._request_timeout)
        if engine.has_processes:
            tag = f"{ray.get_runtime_context().get_node_id()}/{self._name}"
            orphan_reaper.reap(tag)  # processes that an earlier actor of this name left behind
            orphan_reaper.start(tag)
        self._memory.watch()
        try:
            await engine.start()
        except EngineStartError as error:
            memory = self._memory.phrase() if concerns_memory(error.message) else ""
            raise EngineStartError(explained(error.message, memory)) from error
        # Frozen objects are skipped: each full collection would walk all of torch and the engine.
        gc.collect()
        gc.freeze()
        tokens = math.inf if engine.cache_tokens is None else engine.cache_tokens * CACHE_SHARE
        size, live = self._spec.in_flight(engine.capacity), self._spec.live
        targets = live.ttft_ms / 1000, live.itl_ms / 1000
        share = BatchShare(engine.capacity, size, *targets, bounded=engine.bounds_steps)
        self._admission = AdmissionQueue(size, tokens, places=engine.capacity, share=share)
        self._admission.on_preemption = self._count_redone
        self._engine = engine
        engine.on_death = self._note_idle_death
        if live.mode != "off":
            # Callers and workers import this module, too. They need no HTTP server.
            from inference.residents.live_server import LiveServer

            self._live = LiveServer(
                engine, self._admission, busy=self._busy, died=self._note_death, is_over=lambda: self._over
            )
            self._live_address = await self._live.start(ray.util.get_node_ip_address())
        self._started_at, self._start_seconds = time.time(), time.monotonic() - began
        announce(log, "engine started", model=self._spec.name, seconds=round(self._start_seconds, 1))
        return engine

    async def waits_for(self) -> str:
        """Return why the engine has not started yet; empty if it does not say."""
        return self._unstarted.waits_for if self._unstarted is not None else ""

    async def reserve(self) -> str | None:
        """Reserve the engine for one `answer_alone` once it is empty. Return the permit; None if it is over."""
        with self._busy():
            await self._admission.drain()
        if self._over:
            self._admission.reopen()
            return None
        if self._engine is not None:
            self._engine.answered_at = time.monotonic()
        permit = uuid.uuid4().hex

        def expire() -> None:
            if self._permits.pop(permit, None) is not None:
                self._admission.reopen()

        self._permits[permit] = asyncio.get_running_loop().call_later(PERMIT_SECONDS, expire)
        return permit

    async def exchange(
        self, session: EngineSession, caller: str, endpoint: str, requests: list[tuple[int, int, int, str]]
    ) -> list[tuple[int, tuple[Any, ...] | None]] | None:
        """Take requests, and return the packed replies that are ready: the first one, and those of GATHER_SECONDS.

        None if the session was dropped: then its caller is to end. A request that was in the engine when it died has
        the error code `engine_died`. One that never entered it has None because the engine is over, or CLOSED.

        Args:
            caller: gets the replies to what it has sent, and no other of the same session does.
            requests: line, position in the session, unshared bytes (see inference.requests.cache_need), and body
                (JSON) of each. Lower positions enter the engine first. A line that an earlier session of the same key
                has sent is not sent again.
        """
        if session.name in self._dropped:
            return None
        if session.name in self._closed and requests:
            return packed([(line, CLOSED) for line, *_ in requests])
        mailbox = self._mailboxes.setdefault(session.name, {}).setdefault(caller, Mailbox())
        # One that runs alone is behind those that wait already: it takes longer than its session's rank would say.
        rank = time.monotonic() if session.alone else self._rank(session)
        need = None if session.alone else self._needs.setdefault(session.name, CacheNeed())
        for line, position, unshared_bytes, body in requests:
            run = functools.partial(self._run, session.name, (rank, position), need, unshared_bytes, endpoint, body)
            mailbox.expect(line, self._replies.call(session, line, run))
        replies = await mailbox.collect(GATHER_SECONDS, session.in_flight // GATHER_SHARE)
        return None if session.name in self._dropped else packed(replies)

    async def _run(
        self, session: str, rank: Rank, need: CacheNeed | None, unshared_bytes: int, endpoint: str, body: str
    ) -> EngineReply | None:
        request = json_lines.loads(body)
        most = most_output(request)

        def tokens() -> int:
            return need.tokens(unshared_bytes, most) if need is not None else WHOLE

        task = asyncio.current_task()
        assert task is not None
        begun = functools.partial(self._has_begun, task)
        self._entering[session].add(task)
        try:
            with self._busy():
                while True:
                    with contextlib.suppress(Preempted):  # it waits again, in its old rank
                        async with self._admission.admit(rank, tokens, preemptible=True, has_begun=begun):
                            self._entering[session].discard(task)
                            reply = await self._answer(endpoint, request)
                            if reply is not None and need is not None:
                                need.learn(len(media.without_data(body)), reply.input_tokens, reply.output_tokens)
                            return reply
                    self._entering[session].add(task)
        except asyncio.CancelledError:
            if session in self._closed:
                return CLOSED
            raise
        finally:
            self._entering[session].discard(task)
            self._progress.pop(task, None)
            if not self._entering[session]:
                del self._entering[session]

    async def close(self, idempotency_key: str) -> None:
        """Let no more requests of this key's session enter the engine. Those in it are answered."""
        session = self._replies.session(idempotency_key)
        if session is not None and session not in self._closed:
            self._closed.append(session)
            for task in list(self._entering.get(session, ())):
                task.cancel()

    async def answer_alone(self, endpoint: str, bodies: list[str], permit: str) -> list[EngineReply] | None:
        """Run bodies as the only requests in the engine, by a `reserve` permit. Return replies; None if over."""
        timer = self._permits.pop(permit, None)
        with self._busy():
            if timer is None:
                await self._admission.drain()
            else:
                timer.cancel()
            try:
                replies = await asyncio.gather(*(self._answer(endpoint, json_lines.loads(body)) for body in bodies))
            finally:
                self._admission.reopen()
        present = [reply for reply in replies if reply is not None]
        return present if len(present) == len(bodies) else None

    def _rank(self, session: EngineSession) -> float:
        """Return a rank: when the session would end if it had had the engine alone.

        Of two sessions of one size the first has the whole engine, which keeps its prefixes cached; the second takes
        over as the first drains. A small session need not wait for a big one, and a big one waits no longer than it
        would have run.
        """
        if session.name not in self._ranks:
            busy = self._busy_seconds + time.monotonic() - self._busy_since
            alone = session.rows * busy / self._requests if self._requests else 0.0
            self._ranks[session.name] = time.monotonic() + alone
        return self._ranks[session.name]

    async def _answer(self, endpoint: str, request: dict[str, Any]) -> EngineReply | None:
        engine = self._engine
        if self._over or engine is None:
            return None
        self._requests += 1
        engine.answered_at = time.monotonic()
        task = asyncio.current_task()
        assert task is not None
        self._progress[task] = progress = RequestProgress()
        PROGRESS.set(progress)
        reply = await replied(engine, endpoint, request, apart=True)
        if reply.death is not None:
            return EngineReply.failed(ENGINE_DIED, self._note_death(reply.death), reply.seconds)
        return reply

    def _note_death(self, reason: str) -> str:
        """Take no more requests, and return why the engine died: the same for all that were in it."""
        if self._death is None:
            self._over = True
            self._memory.freeze()
            self._death = explained(reason, self._memory.phrase())
        return self._death

    def _note_idle_death(self, reason: str) -> None:
        if not self._over:
            self._note_death(reason)

    def _has_begun(self, task: asyncio.Task[Any]) -> bool:
        """Return True if the request of a task has a token, as far as the engine can tell."""
        progress = self._progress.get(task)
        return progress is not None and self._engine is not None and self._engine.has_begun(progress)

    def _count_redone(self, task: asyncio.Task[Any]) -> None:
        """Count what the engine has computed of a request that has lost its place."""
        progress = self._progress.pop(task, None)
        if progress is not None and self._engine is not None:
            self._engine.measure(progress)
            tokens = {"input_tokens": progress.input_tokens, "output_tokens": progress.output_tokens}
            self._redone.update(requests=1, **tokens)

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
        """Return the seconds since the engine last showed work or got some; 0 without any."""
        if self._admission.inside == 0 or self._engine is None:
            return 0.0
        return time.monotonic() - self._engine.answered_at

    async def drop(self, session: str) -> None:
        """Cancel the remaining requests of a session, and let its caller end if it still runs."""
        self._dropped.append(session)
        self._ranks.pop(session, None)
        self._mailboxes.pop(session, None)
        self._needs.pop(session, None)
        self._replies.drop(session)

    async def state(self) -> dict[str, Any]:
        """Return the engine's ResidentStatus as a dict, which callers of other versions can read too."""
        engine = self._engine
        await asyncio.to_thread(self._memory.look)
        counted: dict[str, Any] = {f"redone_{name}": number for name, number in self._redone.items()}
        counted |= {name: getattr(engine, name, None) for name in ENGINE_FIELDS}
        return ResidentStatus(
            **counted,
            name=self._name,
            model=self._spec.name,
            state="busy" if self._admission.inside else "idle",
            answered=self._requests,
            in_flight=self._admission.inside,
            idle_seconds=0.0 if self._calls else time.monotonic() - self._used_at,
            seen_at=time.time(),
            endpoints=engine.endpoints() if engine else [],
            started_at=self._started_at,
            start_seconds=self._start_seconds,
            memory_bytes=self._memory.now,
            peak_memory_bytes=self._memory.most,
            peak_gpu_memory_bytes=self._memory.most_of_gpus,
            gpus=gpus(self._spec),
            live_answered=self._live.answered if self._live else 0,
            live_in_flight=self._admission.live_inside,
            live_waiting=self._admission.live_waiting,
            batch_limit=self._admission.batch_limit(),
            gpu_ids=ray.get_runtime_context().get_accelerator_ids().get("GPU", []),
            process=self._process,
        ).model_dump()

    async def stop(self) -> None:
        """End the engine and its processes. The caller then kills the actor."""
        self._over = True
        self._memory.freeze()
        if self._live is not None:
            await self._live.stop()
        if self._engine is not None:
            await self._engine.stop()

    async def stop_if_idle(self) -> bool:
        """Stop if there is no work now and none expected soon. Return True if it stopped."""
        silence = time.monotonic() - self._used_at
        at_work = self._engine is None or self._calls > 0 or bool(self._permits) or self._stays
        if at_work or silence < (RUN_SECONDS if self._ranks else IDLE_SECONDS):
            return False
        await self.stop()
        return True

    @property
    def _stays(self) -> bool:
        """True if the engine is to be there for live requests even if there are none."""
        return self._spec.live.mode == "always"

    async def _stop_when_idle(self) -> None:
        while (not self._over and not self._stays) or self._death is not None:
            remaining = self._idle_seconds - (time.monotonic() - self._used_at)
            if self._calls == 0 and not self._permits and remaining <= 0:
                log.info("engine stops: no work", extra={"engine": self._name, "idle_seconds": self._idle_seconds})
                await self.stop()
                ray.kill(ray.get_runtime_context().current_actor)
                return
            await asyncio.sleep(max(min(remaining, 5.0), 0.05))


class StartedEngine(NamedTuple):
    """A started engine's versions, its limits of requests (held, and run at once), and where it answers live ones."""

    versions: dict[str, str]
    in_flight: int
    capacity: int = CAPACITY
    live: LiveAddress | None = None


_ENGINE = ray.remote(EngineActor)
"""Made once: Ray keeps what it makes of a class for as long as the process lives."""


def get_or_create_engine(spec: ModelSpec, request_timeout: float, replica: int) -> ActorHandle:
    """Return this replica's actor, created if need be. It may not run yet: call `ready`."""
    name = actor_name(spec, request_timeout, replica)
    return _ENGINE.options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=CPUS,
        num_gpus=gpus(spec),
        max_concurrency=1000,
        max_restarts=0,
    ).remote(name, spec, request_timeout)


def gpus(spec: ModelSpec) -> float:
    """Return the GPUs of one of the model's replicas."""
    if spec.num_gpus is not None:
        return spec.num_gpus
    need = capabilities(spec.engine).gpus(spec)
    return need if need and ray.cluster_resources().get("GPU") else 0
