"""The caller: the function that Ray Data maps over the rows. It calls the engine actors until every row is answered.

It runs in Ray tasks, whose processes are reused: an actor per run would take a new process, at 1.5 s and 2.3 s of CPU
against 0.07 and 0.1.

A run uses the replicas that are there, and takes in the others as they come. When an engine dies, with its node or
alone, its requests move to another replica. If there is none, or they were in a second engine that died, any of them
may be the reason: they run again on a fresh engine with nothing else in it, in halves, until the one that kills engines
is alone. It is answered `engine_died`; all others get their answers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

from batchyard import output_lines
from batchyard.errors import EngineDied, EngineError, EngineStartError
from batchyard.models import ModelSpec
from inference.answers import ANSWERS
from inference.engines.start_errors import start_error, start_timed_out
from inference.residents.actor import ENDED
from inference.residents.directory import get_or_create_engine
from inference.residents.kept_replies import Reply
from inference.residents.session import EngineSession, EngineTimeouts

LIST_ROWS = range(32, 129)
"""Requests of one call: an eighth of a replica's limit in flight, within these bounds, and at most a quarter of it."""
TOGETHER_SECONDS = 1.0
PACKED = "answers"
PACKED_BYTES = 32 * 1024 * 1024
"""Approximate limit of a packed table, which Arrow limits to 2 GiB."""
FAILED = -1
"""Line number of a table that holds the error that ended the run instead of answers."""
DEATHS_IN_A_ROW = 11
"""Deaths without an answer in between: more than it takes to halve a full list down to one row and run it twice."""
DEATHS = 40
"""Most deaths in one run; each costs an engine start."""
STRIKES = 2
PING_SECONDS = 10.0
JOIN_PAUSES = (0.2, 10.0)
"""Shortest and longest pause between two starts of a replica, in seconds."""
RETURN_SECONDS = 30.0
"""A replica that died and is not back after so long leaves its requests to those that are there."""

log = logging.getLogger(__name__)


@dataclass
class Row:
    """One request, and its reply once it has one."""

    line: int
    body: str
    position: int
    reply: Reply | None = None
    strikes: int = 0


@dataclass
class Replica:
    """One engine actor as this caller sees it: there, with a handle, or joining.

    Attributes:
        failure: why it could not start; None if it is there or was not tried yet.
        starting: the actor that does not run yet.
    """

    index: int
    handle: ActorHandle | None = None
    load: int = 0
    failure: EngineError | None = None
    starting: ActorHandle | None = None
    joining: asyncio.Task[None] | None = None
    isolating: asyncio.Lock = field(default_factory=asyncio.Lock)


class Caller:
    """One process's part of a run: maps a table of (position, line, custom_id, body) to tables with the schema ANSWERS.

    Each replica has its own stretch of the run, because requests with a common prefix stand together there. A replica
    that is not there, or is behind by more than its limit in flight, gives lists to another.

    An error that ends the run (engines die without end, or none starts) becomes a table for
    `raise_failure`, because Ray Data passes an exception on as text only.
    """

    def __init__(self, spec: ModelSpec, endpoint: str, session: EngineSession, timeouts: EngineTimeouts) -> None:
        self._spec = spec
        self._endpoint = endpoint
        self._session = session
        self._timeouts = timeouts
        self._replicas = [Replica(index) for index in range(spec.replicas)]
        self._changed = asyncio.Event()
        self._deaths = 0
        self._deaths_in_a_row = 0

    async def close(self) -> None:
        """Stop to wait for replicas."""
        tasks = [replica.joining for replica in self._replicas if replica.joining is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def answers(self, table: pa.Table) -> AsyncGenerator[pa.Table]:
        """Yield answers as they come, those within TOGETHER_SECONDS in one table."""
        rows = list(map(Row, *(table.column(name).to_pylist() for name in ("line", "body", "position"))))
        bounded = min(max(self._session.in_flight // 8, LIST_ROWS[0]), LIST_ROWS[-1])
        size = max(1, min(bounded, self._session.in_flight // 4))
        pending: set[asyncio.Task[None]] = set()
        try:
            self._join_missing()
            await self._read_loads()
            lists = {asyncio.create_task(self._answer(rows[at : at + size])): at for at in range(0, len(rows), size)}
            pending = set(lists)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if pending:
                    more, pending = await asyncio.wait(pending, timeout=TOGETHER_SECONDS)
                    done |= more
                await asyncio.gather(*done)
                answered = sorted(lists[task] for task in done)
                yield _answers(
                    pa.concat_tables([table.slice(at, size) for at in answered]),
                    [row.reply for at in answered for row in rows[at : at + size] if row.reply is not None],
                )
        except EngineError as error:
            yield _failed(error)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _answer(self, rows: list[Row]) -> None:
        """Set the reply of each row."""
        deaths = 0
        while rows:
            replica = await self._choose(rows[0].position)
            replica.load += len(rows)
            try:
                async with replica.isolating:
                    pass  # rows sent while suspects run alone would become suspects themselves
                died = await self._call(replica, rows, alone=False)
                rows = [row for row in rows if row.reply is None]
                deaths += died
                if died and (deaths == STRIKES or not self._there()):
                    await self._isolate(replica, rows)
            finally:
                replica.load -= len(rows)
            rows = [row for row in rows if row.reply is None]

    async def _read_loads(self) -> None:
        """Read the load of each replica; other processes use them too."""
        replicas = await self._available()
        if len(self._replicas) == 1:
            return
        loads = await asyncio.gather(*map(self._load, replicas))
        for replica, load in zip(replicas, loads, strict=True):
            replica.load = load

    async def _load(self, replica: Replica) -> int:
        if replica.handle is None:
            return 0
        try:
            load: int = await asyncio.wait_for(_result(replica.handle.load.remote()), PING_SECONDS)
        except (TimeoutError, RayActorError):
            return 0  # a dead one is noticed at its next call
        return load

    async def _choose(self, position: int) -> Replica:
        """Choose a replica that is there for the list at `position`. Raises EngineError if there is none."""
        own = self._replicas[position * len(self._replicas) // self._session.rows]
        least = min(await self._available(), key=lambda replica: replica.load)
        return own if own.handle is not None and own.load - least.load <= self._session.in_flight else least

    async def _isolate(self, replica: Replica, suspects: list[Row]) -> None:
        """Run the rows of a dead engine again with nothing else in it, in halves, down to the one that kills it."""
        groups = [suspects]
        while groups:
            async with replica.isolating:
                while groups and await self._back(replica):
                    group = groups.pop()
                    died = await self._call(replica, group, alone=True)
                    unanswered = [row for row in group if row.reply is None]
                    if not unanswered:
                        continue
                    if died and len(group) == 1:
                        row = group[0]
                        row.strikes += 1
                        if row.strikes == STRIKES:
                            row.reply = (None, None, self._verdict(), 0, 0, 0, 0.0)
                            continue
                    middle = len(unanswered) // 2 if died else 0
                    groups += [half for half in (unanswered[middle:], unanswered[:middle]) if half]
            if groups:
                replica = await self._choose(groups[-1][0].position)

    def _verdict(self) -> dict[str, str]:
        message = f"engine {self._spec.engine} of model {self._spec.name} died each time it ran this request alone"
        log.warning(message, extra={"model": self._spec.name})
        return {"code": ENDED, "message": message}

    async def _call(self, replica: Replica, rows: list[Row], *, alone: bool) -> bool:
        """Call the engine once and set the rows' replies. Return True if it died with these rows in it."""
        handle = replica.handle
        if handle is None:
            return False
        permit = None
        if alone:
            try:
                permit = await self._watch(handle, handle.reserve.remote())
            except EngineDied as death:
                self._lost(replica, handle, death.message)
                return False
            if permit is None:
                self._replace(replica, handle)
                return False
        lines, bodies = [row.line for row in rows], [row.body for row in rows]
        try:
            call = handle.answer.remote(self._session, rows[0].position, self._endpoint, lines, bodies, permit)
            replies = await self._watch(handle, call)
        except EngineDied as death:
            self._lost(replica, handle, death.message)
            return True
        if replies is None:
            self._replace(replica, handle)
            return False
        died = ""
        for row, reply in zip(rows, replies, strict=True):
            if reply[2] is not None and reply[2]["code"] == ENDED:
                died = reply[2]["message"]
            else:
                row.reply = reply
                self._deaths_in_a_row = 0
        if died:
            self._lost(replica, handle, died)
        return bool(died)

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
                raise EngineDied(f"the engine answered nothing for {patience:g} seconds and was killed")
        try:
            return call.result()
        except RayActorError as error:
            raise EngineDied(_why(error)) from error
        except RayTaskError as error:
            raise EngineError(f"engine {self._spec.engine} of model {self._spec.name}: {error.cause!r}") from error

    def _there(self) -> list[Replica]:
        return [replica for replica in self._replicas if replica.handle is not None]

    async def _available(self) -> list[Replica]:
        """Return the replicas that are there, at least one.

        Raises:
            EngineError: none can start, or none does in time.
        """
        while not (replicas := self._there()):
            failures = [replica.failure for replica in self._replicas if replica.failure is not None]
            if len(failures) == len(self._replicas):
                raise failures[0]
            if not await self._change(self._timeouts.start_timeout):
                for replica in self._replicas:
                    if replica.starting is not None:
                        ray.kill(replica.starting)
                timed_out = EngineStartError(start_timed_out(self._spec, self._timeouts.start_timeout))
                raise failures[0] if failures else timed_out
        return replicas

    async def _back(self, replica: Replica) -> bool:
        """Wait until a replica that died is there again. Return False if another has to take its rows."""
        waited_since = time.monotonic()
        while replica.handle is None:
            waited = time.monotonic() - waited_since
            if replica.failure is not None or waited > (RETURN_SECONDS if self._there() else math.inf):
                return False
            if not await self._change(min(RETURN_SECONDS, self._timeouts.start_timeout)) and not self._there():
                return False
        return True

    async def _change(self, seconds: float) -> bool:
        """Wait until a replica joins or cannot. Return False if none does within `seconds`."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _join_missing(self) -> None:
        for replica in self._replicas:
            if replica.handle is None and (replica.joining is None or replica.joining.done()):
                replica.failure = None
                replica.joining = asyncio.create_task(self._join(replica))

    async def _join(self, replica: Replica) -> None:
        """Take in a replica as soon as it is there, however long that takes. Starts that fail are repeated."""
        shortest, longest = JOIN_PAUSES
        for failures in itertools.count():
            handle = replica.starting = get_or_create_engine(self._spec, self._timeouts.request_timeout, replica.index)
            try:
                if await _result(handle.ready.remote(self._timeouts.idle_seconds)) is not None:
                    replica.handle, replica.load, replica.failure, replica.starting = handle, 0, None, None
                    self._changed.set()
                    return
            except ActorUnavailableError as error:
                log.info("engine is out of reach: %s", error, extra={"model": self._spec.name})
            except RayActorError as error:
                # A dead actor keeps its name until the cluster has noted its death, so this may be the old engine.
                if not self._there():
                    try:
                        self._count_death(_why(error))
                    except EngineError as failure:
                        replica.failure = failure
            except RayTaskError as error:
                ray.kill(handle)
                replica.failure = start_error(self._spec, error)
            if replica.failure is not None:
                log.warning("replica cannot start: %s", replica.failure, extra={"model": self._spec.name})
                self._changed.set()
            await asyncio.sleep(min(shortest * 2**failures, longest))

    def _replace(self, replica: Replica, handle: ActorHandle) -> None:
        """Forget an engine that stopped or died, so that the next call gets another."""
        if replica.handle is handle:
            replica.handle = None
            ray.kill(handle)
            self._join_missing()

    def _lost(self, replica: Replica, handle: ActorHandle, reason: str) -> None:
        """Count the death of an engine once, though every list that was in it reports it."""
        if replica.handle is handle:
            self._replace(replica, handle)
            self._count_death(reason)

    def _count_death(self, reason: str) -> None:
        self._deaths += 1
        self._deaths_in_a_row += 1
        log.warning("engine died", extra={"model": self._spec.name, "reason": reason, "deaths": self._deaths})
        if self._deaths_in_a_row > DEATHS_IN_A_ROW or self._deaths > DEATHS:
            raise EngineError(
                f"engine {self._spec.engine} of model {self._spec.name} died {self._deaths} times in one run, "
                f"{self._deaths_in_a_row} of them without an answer between: {reason}"
            )


_callers: dict[str, Caller] = {}
"""The caller of this process by session. A process maps one table at a time, so there is one."""
_runner = asyncio.Runner()


def answer(
    table: pa.Table, spec: ModelSpec, endpoint: str, session: EngineSession, timeouts: EngineTimeouts
) -> Iterator[pa.Table]:
    """Map a block of rows to packed tables of answers as they come, with this process's caller.

    A packed table is one row, which Ray Data passes on at once; of several rows it would wait for more.
    """
    if session.name not in _callers:
        for caller in _callers.values():
            _runner.run(caller.close())
        _callers.clear()
        _callers[session.name] = Caller(spec, endpoint, session, timeouts)
    answers = _callers[session.name].answers(table)

    async def following() -> pa.Table | None:
        return await anext(answers, None)

    try:
        while (answered := _runner.run(following())) is not None:
            size = max(1, answered.num_rows * PACKED_BYTES // max(1, answered.nbytes))
            for at in range(0, answered.num_rows, size):
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, answered.schema) as stream:
                    stream.write_table(answered.slice(at, size))
                yield pa.table({PACKED: [sink.getvalue().to_pybytes()]})
    finally:
        _runner.run(answers.aclose())


def unpacked(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the tables of answers that `answer` packed."""
    for packed in table.column(PACKED):
        yield pa.ipc.open_stream(packed.as_buffer()).read_all()


def _failed(error: EngineError) -> pa.Table:
    answer = json.dumps({"type": type(error).__name__, "message": error.message})
    return pa.Table.from_pylist([{"line": FAILED, "ok": False, "answer": answer}], schema=ANSWERS)


def raise_failure(answers: pa.Table) -> None:
    """Raise the error that ended the run, if this table is one.

    Raises:
        EngineStartError, EngineError: as the caller met them.
    """
    if answers.num_rows and answers.column("line")[0].as_py() == FAILED:
        failure = json.loads(answers.column("answer")[0].as_py())
        kind = EngineStartError if failure["type"] == EngineStartError.__name__ else EngineError
        raise kind(failure["message"])


def _why(error: RayActorError) -> str:
    """Return Ray's reason for an actor's death, on one line."""
    text = " ".join(str(error).split())
    _, _, reason = text.partition("The actor is dead because ")
    return (reason or text)[:200]


async def _result(reference: Any) -> Any:
    return await reference


def _answers(table: pa.Table, replies: list[Reply]) -> pa.Table:
    """Return the output lines (OpenAI's Batch API) of `table`'s rows, in its order."""
    lines = [
        output_lines.line(custom_id, *reply[:3])
        for custom_id, reply in zip(table.column("custom_id").to_pylist(), replies, strict=True)
    ]
    _, _, _, input_tokens, cached_tokens, output_tokens, seconds = zip(*replies, strict=True)
    columns = [
        table.column("line").cast(pa.int64()),
        pa.array([reply[0] == 200 for reply in replies]),
        pa.array(lines, pa.string()),
        pa.array(input_tokens, pa.int64()),
        pa.array(cached_tokens, pa.int64()),
        pa.array(output_tokens, pa.int64()),
        pa.array(seconds, pa.float64()),
    ]
    return pa.Table.from_arrays(columns, schema=ANSWERS)
