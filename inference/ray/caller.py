"""The caller: the function that Ray Data maps over the rows of a run. It exchanges requests for replies with the engine
actors until every row is answered.

It runs in a Ray task, whose process is used again: an actor per run would take a new process, at 1.5 s and 2.3 s of CPU
against 0.07 and 0.1. A run of few rows has it in its own process (`answer_here`).

A run whose session is closed sends nothing more, and ends when what is in the engines is answered.

A run uses the replicas that are there, and takes in the others as they come. When an engine dies, with its node or
alone, its requests move to another replica. If there is none, or they were in a second engine that died, any of them
may be the reason: they run again on a fresh engine with nothing else in it, in halves, until the one that kills engines
is alone. It is answered `engine_died`; all others get their answers. Each death goes to whoever began the run, at its
place among the answers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import threading
import time
import uuid
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

from batchyard.errors import EngineDied, EngineError, EngineStartError, Stopped
from batchyard.failures.endings import actor_death
from batchyard.failures.reasons import explained
from batchyard.models import ModelSpec
from batchyard.statuses import AfterDeath
from inference.deaths import EngineDeath
from inference.engines.start_errors import no_place, start_error, start_timed_out
from inference.ray import tables
from inference.ray_internals import actor_id
from inference.requests.cache_need import own_bytes
from inference.residents.actor import gpus
from inference.residents.directory import UNPLACED_SECONDS, are_unplaced, get_or_create_engine
from inference.residents.replies import CLOSED, ENGINE_DIED, EngineReply, unpacked
from inference.residents.session import EngineSession, EngineTimeouts
from inference.waits import SLICE_SECONDS

TOGETHER_SECONDS = 1.0
DEATHS_IN_A_ROW = 4
"""Deaths without an answer in between, beyond those that it takes to halve a full engine down to one row."""
DEATHS = 40
"""Most deaths in one run; each costs an engine start."""
STRIKES = 2
PING_SECONDS = 10.0
JOIN_PAUSES = (0.2, 10.0)
"""Shortest and longest pause between two starts of a replica, in seconds."""
RETURN_SECONDS = 30.0
"""A replica that died and is not back after so long leaves its suspects to those that are there."""
SHARE_SECONDS = 1.0
"""A replica that is not there for so long leaves its requests to the others."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class RunRow:
    """One request, and its reply once it has one.

    Attributes:
        place: its index in the table.
        own_bytes: see inference.requests.cache_need.
        deaths: of engines that had it among others.
        strikes: deaths of engines that had it alone.
    """

    place: int
    line: int
    body: str
    position: int
    own_bytes: int
    reply: EngineReply | None = None
    deaths: int = 0
    strikes: int = 0


@dataclass(eq=False)
class Replica:
    """One engine actor as this caller sees it: there, with a handle, or joining.

    Attributes:
        waiting: its share of the rows that were not sent yet.
        sent: rows whose reply is missing, by line.
        suspects: groups of rows, of which any may have killed the engine.
        absent_since: when it was not there any more; time.monotonic().
        failure: why it could not start; None if it is there or was not tried yet.
        starting: the actor that does not run yet.
    """

    index: int
    handle: ActorHandle | None = None
    waiting: deque[RunRow] = field(default_factory=deque)
    sent: dict[int, RunRow] = field(default_factory=dict)
    suspects: list[list[RunRow]] = field(default_factory=list)
    absent_since: float = field(default_factory=time.monotonic)
    failure: EngineError | None = None
    starting: ActorHandle | None = None

    def absent(self, seconds: float) -> bool:
        """True if it is not there since `seconds` or cannot start."""
        return self.handle is None and (self.failure is not None or time.monotonic() - self.absent_since >= seconds)


class EngineCaller:
    """A run: maps a table of (position, line, custom_id, body) to tables with the schema ANSWERS.

    Each replica has its own stretch of the rows, because requests with a common prefix stand together there. It holds
    `in_flight` of them at once, and gets another as soon as one is answered. A replica whose stretch is done takes
    over from the others.
    """

    def __init__(self, spec: ModelSpec, endpoint: str, session: EngineSession, timeouts: EngineTimeouts) -> None:
        self._spec = spec
        self._endpoint = endpoint
        self._session = session
        self._timeouts = timeouts
        self._name = uuid.uuid4().hex
        self._replicas = [Replica(index) for index in range(spec.replicas)]
        self._missing = 0
        self._ready: list[RunRow | EngineDeath] = []
        self._failure: EngineError | None = None
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._returned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._dead: set[str] = set()
        self._deaths = 0
        self._deaths_in_a_row = 0
        self._closed = False

    async def answers(self, table: pa.Table) -> AsyncGenerator[pa.Table]:
        """Yield answers as they come, those within TOGETHER_SECONDS in one table, and a table for each death.

        An error that ends the run (engines die without end, or none starts) becomes a table for `raise_failure`,
        because Ray Data passes an exception on as text only.
        """
        lines, bodies, positions = (table.column(name).to_pylist() for name in ("line", "body", "position"))
        self._share(list(map(RunRow, itertools.count(), lines, bodies, positions, own_bytes(bodies))))
        serving = [asyncio.create_task(self._serve_until_over(replica)) for replica in self._replicas]
        try:
            while (self._missing or self._ready) and self._failure is None:
                await self._next()
                for ready in self._take_ready(table):
                    yield ready
            for ready in self._take_ready(table):
                yield ready
            if self._failure is not None:
                yield tables.failed(self._failure)
        finally:
            await _cancel(set(serving))

    def _take_ready(self, table: pa.Table) -> Iterator[pa.Table]:
        """Yield what is ready as tables, in its order."""
        ready, self._ready = self._ready, []
        for is_death, entries in itertools.groupby(ready, key=lambda entry: isinstance(entry, EngineDeath)):
            if is_death:
                yield from (tables.died(death) for death in entries if isinstance(death, EngineDeath))
            else:
                rows = [row for row in entries if isinstance(row, RunRow)]
                replies = [row.reply for row in rows if row.reply is not None]
                yield tables.answers(table.take([row.place for row in rows]), replies)

    def _share(self, rows: list[RunRow]) -> None:
        """Give each replica a stretch of the rows."""
        self._missing = len(rows)
        stretch = math.ceil(len(rows) / len(self._replicas))
        # Small runs do not all begin with the same replica. A later run of the same work finds its replies again.
        first = zlib.crc32(self._session.idempotency_key.encode())
        for number, start in enumerate(range(0, len(rows), stretch)):
            self._replicas[(first + number) % len(self._replicas)].waiting.extend(rows[start : start + stretch])

    async def _next(self) -> None:
        """Wait for answers or deaths: the first one, and those of TOGETHER_SECONDS."""
        self._news.clear()
        while self._missing and not self._ready and self._failure is None:
            try:
                await asyncio.wait_for(self._news.wait(), min(self._timeouts.start_timeout, UNPLACED_SECONDS))
            except TimeoutError:
                if self._has_no_place():
                    self._failure = EngineStartError(no_place(self._spec, gpus(self._spec)))
                elif all(replica.absent(self._timeouts.start_timeout) for replica in self._replicas):
                    for replica in self._replicas:
                        if replica.starting is not None:
                            ray.kill(replica.starting)
                    reasons = [replica.failure for replica in self._replicas if replica.failure is not None]
                    timed_out = EngineStartError(start_timed_out(self._spec, self._timeouts.start_timeout))
                    self._failure = reasons[0] if reasons else timed_out
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), TOGETHER_SECONDS)

    def _has_no_place(self) -> bool:
        """True if for long no replica is there, and each waits for a node with room."""
        starting = [replica.starting for replica in self._replicas if replica.absent(UNPLACED_SECONDS)]
        handles = [handle for handle in starting if handle is not None]
        return len(handles) == len(self._replicas) and are_unplaced(handles)

    def _answer(self, row: RunRow, reply: EngineReply) -> None:
        row.reply = reply
        self._ready.append(row)
        self._missing -= 1
        if reply.death is None:
            self._deaths_in_a_row = 0
        self._news.set()
        if not self._missing:
            self._over.set()

    def _close(self, refused: Sequence[RunRow] = ()) -> None:
        """Leave the rows that no engine has, since the session is closed: those refused, and all that wait."""
        self._closed = True
        self._missing -= len(refused)
        for replica in self._replicas:
            self._missing -= len(replica.waiting) + sum(map(len, replica.suspects))
            replica.waiting.clear()
            replica.suspects.clear()
        if not self._missing:
            self._news.set()
            self._over.set()

    async def _serve_until_over(self, replica: Replica) -> None:
        try:
            await self._serve(replica)
        except EngineError as error:
            self._failure = self._failure or error
            self._news.set()
            self._over.set()

    async def _serve(self, replica: Replica) -> None:
        """Keep the replica full until the run is over."""
        exchanges: set[asyncio.Task[None]] = set()
        try:
            while True:
                if self._closed:
                    self._close()  # also what has come back from an engine that died
                if replica.handle is None:
                    await _cancel(exchanges)  # they are with an engine that is gone
                    await self._join(replica)
                    continue
                if (suspects := self._suspects(replica)) is not None:
                    await self._run_alone(replica, replica.handle, suspects)
                    continue
                rows = self._take(replica)
                if rows or (replica.sent and not exchanges):
                    exchanges.add(asyncio.create_task(self._exchange(replica, replica.handle, rows)))
                events = {*exchanges, self._returned}
                await asyncio.wait(events, timeout=SHARE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for exchange in [exchange for exchange in exchanges if exchange.done()]:
                    exchanges.remove(exchange)
                    exchange.result()
        finally:
            await _cancel(exchanges)

    def _take(self, replica: Replica) -> list[RunRow]:
        """Take the rows for which the replica has room: its own, else those of the replica with the most."""
        room = self._session.in_flight - len(replica.sent)
        rows = [replica.waiting.popleft() for _ in range(min(room, len(replica.waiting)))]
        if not rows and not replica.waiting and room > 0:
            others = [one for one in self._replicas if one.handle is not None or one.absent(SHARE_SECONDS)]
            longest = max(others, key=lambda one: len(one.waiting))
            share = len(longest.waiting) if longest.handle is None else math.ceil(len(longest.waiting) / 2)
            rows = [longest.waiting.pop() for _ in range(min(room, share))][::-1]
        replica.sent |= {row.line: row for row in rows}
        return rows

    def _suspects(self, replica: Replica) -> list[RunRow] | None:
        """Return the next group that has to run alone: the replica's own, or of one that does not come back."""
        for owner in (replica, *(one for one in self._replicas if one.absent(RETURN_SECONDS))):
            if owner.suspects:
                return owner.suspects.pop()
        return None

    def _wait_again(self, replica: Replica, rows: Sequence[RunRow]) -> None:
        """Put rows back that were not run, first in the order, and let the replicas look for work if there are any."""
        if rows:
            replica.waiting.extendleft(sorted(rows, key=lambda row: -row.position))
            self._returned.set_result(None)
            self._returned = asyncio.get_running_loop().create_future()

    async def _exchange(self, replica: Replica, handle: ActorHandle, rows: list[RunRow]) -> None:
        """Send rows, and take the replies that are ready."""
        requests = [(row.line, row.position, row.own_bytes, row.body) for row in rows]
        try:
            call = handle.exchange.remote(self._session, self._name, self._endpoint, requests)
            replies = await self._watch(handle, call)
        except EngineDied as death:
            self._died(replica, handle, death.message)
            return
        if replies is None:
            raise EngineError("the run was given up")
        refused, unsent, suspects, reason = [], [], [], ""
        for line, reply in unpacked(replies):
            row = replica.sent.pop(line, None)
            if row is None:
                continue  # it was given to another replica meanwhile
            if reply is None:
                refused.append(row)
            elif reply == CLOSED:
                unsent.append(row)
            elif reply.death is not None:
                suspects.append(row)
                reason = reply.death
            else:
                self._answer(row, reply)
        self._wait_again(replica, refused)
        if unsent:
            self._close(unsent)
        if suspects:
            replica.sent |= {row.line: row for row in suspects}
            self._died(replica, handle, reason)
        elif refused:
            self._replace(replica, handle)

    def _died(self, replica: Replica, handle: ActorHandle, reason: str) -> None:
        """Count the death of an engine. What was in it runs again, alone if it may be the reason."""
        if replica.handle is not handle:
            return  # another call has reported it
        rows, replica.sent = list(replica.sent.values()), {}
        for row in rows:
            row.deaths += 1
        others = any(one.handle is not None for one in self._replicas if one is not replica)
        suspects = [row for row in rows if row.deaths >= STRIKES or not others]
        self._lost(
            replica, handle, reason, len(rows), "runs_alone" if suspects else "runs_again" if rows else "starts_again"
        )
        self._wait_again(replica, [row for row in rows if row.deaths < STRIKES and others])
        if suspects:
            replica.suspects.append(suspects)

    async def _run_alone(self, replica: Replica, handle: ActorHandle, rows: list[RunRow]) -> None:
        """Run rows that were in a dead engine with nothing else in it. If they kill it again, their halves run next."""
        replies: list[EngineReply] | None = None
        died = ""
        try:
            permit = await self._watch(handle, handle.reserve.remote())
        except EngineDied as death:  # nothing of ours was in it
            self._lost(replica, handle, death.message, 0, "starts_again")
        else:
            try:
                if permit is not None:
                    bodies = [row.body for row in rows]
                    replies = await self._watch(handle, handle.answer_alone.remote(self._endpoint, bodies, permit))
            except EngineDied as death:
                died = death.message
        for row, reply in zip(rows, replies or (), strict=False):
            if reply.death is not None:
                died = reply.death
            else:
                self._answer(row, reply)
        requests, rows = len(rows), [row for row in rows if row.reply is None]
        if died:
            is_last = len(rows) == 1 and rows[0].strikes + 1 == STRIKES
            self._lost(replica, handle, died, requests, "request_fails" if is_last else "runs_alone")
        elif replies is None:
            self._replace(replica, handle)
        if died and len(rows) == 1:
            rows[0].strikes += 1
            if rows[0].strikes == STRIKES:
                self._answer(rows[0], self._verdict(died))
                return
        middle = len(rows) // 2 if died else 0
        replica.suspects += [half for half in (rows[middle:], rows[:middle]) if half]

    def _verdict(self, reason: str) -> EngineReply:
        message = (
            f"engine {self._spec.engine} of model {self._spec.name} died each time it ran this request alone: {reason}"
        )
        log.warning(message, extra={"model": self._spec.name})
        return EngineReply.failed(ENGINE_DIED, message)

    async def _watch(self, handle: ActorHandle, reference: Any) -> Any:
        """Return the call's result; wait for it as long as the engine shows work.

        Raises:
            EngineDied: the engine's process ended, or hangs and was killed.
            EngineError: the call itself failed.
        """
        patience = self._timeouts.request_timeout + self._timeouts.hang_margin
        ping = min(PING_SECONDS, self._timeouts.hang_margin)
        call = asyncio.ensure_future(_result(reference))
        while not (await asyncio.wait([call], timeout=patience))[0]:
            try:
                quiet = await asyncio.wait_for(_result(handle.quiet.remote()), ping)
            except TimeoutError:
                quiet = patience
            except RayActorError:
                continue  # the call fails with it, too
            if quiet >= patience:
                call.cancel()
                raise EngineDied(explained(f"the engine answered nothing for {patience:g} seconds and was killed"))
        try:
            return call.result()
        except RayActorError as error:
            raise EngineDied(_why(error)) from error
        except RayTaskError as error:
            raise EngineError(f"engine {self._spec.engine} of model {self._spec.name}: {error.cause!r}") from error

    async def _join(self, replica: Replica) -> None:
        """Take in a replica as soon as it is there, however long that takes. Starts that fail are repeated.

        Raises:
            EngineError: no replica can start.
        """
        shortest, longest = JOIN_PAUSES
        replica.failure = None
        for failures in itertools.count():
            handle = replica.starting = get_or_create_engine(self._spec, self._timeouts.request_timeout, replica.index)
            try:
                if await _result(handle.ready.remote(self._timeouts.idle_seconds)) is not None:
                    replica.handle, replica.failure, replica.starting = handle, None, None
                    return
            except ActorUnavailableError as error:
                log.info("engine is out of reach: %s", error, extra={"model": self._spec.name})
            except RayActorError as error:
                # A dead actor keeps its name until the cluster has noted its death, so this may be the old engine.
                if not was_stopped(error):
                    self._count_death(replica, handle, _why(error), fruitless=not self._is_any_there())
            except RayTaskError as error:
                ray.kill(handle)
                replica.failure = start_error(self._spec, error)
                log.warning("replica cannot start: %s", replica.failure, extra={"model": self._spec.name})
                if all(one.failure is not None for one in self._replicas):
                    raise replica.failure from error
            await asyncio.sleep(min(shortest * 2**failures, longest))

    def _is_any_there(self) -> bool:
        return any(replica.handle is not None for replica in self._replicas)

    def _replace(self, replica: Replica, handle: ActorHandle) -> None:
        """Forget an engine that stopped or died. Its rows wait for another."""
        if replica.handle is handle:
            replica.handle, replica.absent_since = None, time.monotonic()
            rows, replica.sent = list(replica.sent.values()), {}
            self._wait_again(replica, rows)
            ray.kill(handle)

    def _lost(self, replica: Replica, handle: ActorHandle, reason: str, requests: int, following: AfterDeath) -> None:
        """Count the death of an engine once, however many calls report it."""
        if replica.handle is handle:
            self._replace(replica, handle)
            self._count_death(replica, handle, reason, requests, following)

    def _count_death(
        self,
        replica: Replica,
        handle: ActorHandle,
        reason: str,
        requests: int = 0,
        following: AfterDeath = "starts_again",
        *,
        fruitless: bool = True,
    ) -> None:
        """Report the death of an engine, once. Only a `fruitless` one counts: no other replica goes on.

        Raises:
            EngineError: there were too many.
        """
        engine = actor_id(handle)
        if engine in self._dead:
            return
        self._dead.add(engine)
        self._deaths += int(fruitless)
        self._deaths_in_a_row += int(fruitless)
        most_in_a_row = self._session.in_flight.bit_length() + DEATHS_IN_A_ROW
        too_many = fruitless and (self._deaths_in_a_row > most_in_a_row or self._deaths > DEATHS)
        if too_many:
            following = "ends_run"
        self._ready.append(EngineDeath(self._spec.name, engine, replica.index, reason, requests, following))
        self._news.set()
        log.warning("engine died", extra={"model": self._spec.name, "reason": reason, "deaths": self._deaths})
        if too_many:
            raise EngineError(
                f"engine {self._spec.engine} of model {self._spec.name} died {self._deaths} times in one run, "
                f"{self._deaths_in_a_row} of them without an answer between: {reason}"
            )


def answer(
    table: pa.Table, spec: ModelSpec, endpoint: str, session: EngineSession, timeouts: EngineTimeouts
) -> Iterator[pa.Table]:
    """Map the rows of a run to packed tables of answers as they come."""
    with closing(answer_here(table, spec, endpoint, session, timeouts, threading.Event())) as answers:
        for answered in answers:
            yield from tables.packed(answered)


def answer_here(
    table: pa.Table,
    spec: ModelSpec,
    endpoint: str,
    session: EngineSession,
    timeouts: EngineTimeouts,
    stopped: threading.Event,
) -> Generator[pa.Table]:
    """Yield the answers to the rows as they come, from a caller in this thread.

    Raises:
        Stopped: `stopped` is set.
    """

    async def begin() -> AsyncGenerator[pa.Table]:
        return EngineCaller(spec, endpoint, session, timeouts).answers(table)

    async def following() -> pa.Table | None:
        return await anext(answers, None)

    with asyncio.Runner() as runner:
        answers = runner.run(begin())
        while True:
            step = runner.get_loop().create_task(following())
            while not step.done():
                runner.run(asyncio.wait([step], timeout=SLICE_SECONDS))
                if stopped.is_set():
                    raise Stopped  # the runner cancels what is under way
            if (answered := step.result()) is None:
                return
            yield answered


def was_stopped(error: RayActorError) -> bool:
    """True if the actor did not die: it had no work, or made room, and was stopped."""
    return "ray.kill" in str(error)


def _why(error: RayActorError) -> str:
    """Return why an actor died, on one line, with the remedy."""
    return explained(actor_death(str(error)))


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel the tasks, and empty the set."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()


async def _result(reference: Any) -> Any:
    return await reference
