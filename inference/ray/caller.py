"""The caller: exchanges a run's requests for replies with the engine actors.

Ray Data maps it over the rows of a run. It runs in a Ray task, whose process is used again: an actor per run would take
a new process, at 1.5 s and 2.3 s of CPU against 0.07 and 0.1. A run of few rows has it in the process that began the
run (`answer_here`).

A run whose session is closed sends nothing more, and ends when what is in the engines is answered.

A run uses the replicas that are there, and takes in the others as they come. When an engine dies, with its node or
alone, its requests move to another replica, or are run alone (inference.ray.isolation). Each death goes to whoever
began the run, at its place among the answers.
"""

import asyncio
import itertools
import threading
import uuid
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

import pyarrow as pa
from ray.actor import ActorHandle

from batchyard.errors import EngineDied, EngineError, Stopped
from batchyard.models import ModelSpec
from inference.answers import Death
from inference.ray import starts, tables
from inference.ray.isolation import Isolation
from inference.ray.replicas import SHARE_SECONDS, Replica, Replicas, RunRow
from inference.requests.cache_need import unshared_bytes
from inference.residents.replies import CLOSED, EngineReply, unpacked
from inference.residents.session import EngineSession, EngineTimeouts
from inference.waits import SLICE_SECONDS

TOGETHER_SECONDS = 1.0


class EngineRun(NamedTuple):
    """What the callers of a run know of it."""

    spec: ModelSpec
    endpoint: str
    session: EngineSession
    timeouts: EngineTimeouts


class EngineCaller:
    """Maps a table of (position, line, custom_id, body) to tables with the schema ANSWERS."""

    def __init__(self, run: EngineRun) -> None:
        self._run = run
        self._name = uuid.uuid4().hex
        self._replicas = Replicas(run.spec, run.session, run.timeouts, self._report)
        self._isolation = Isolation(run.spec, run.endpoint, self._replicas, self._answer)
        self._missing = 0
        self._ready: list[RunRow | Death] = []
        self._failure: EngineError | None = None
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._closed = False

    async def answers(self, table: pa.Table) -> AsyncGenerator[pa.Table | Death]:
        """Yield answers within TOGETHER_SECONDS as tables, and each death. Raises EngineError in the end."""
        lines, bodies, positions = (table.column(name).to_pylist() for name in ("line", "body", "position"))
        self._missing = len(lines)
        items = (custom_id.rpartition("/")[0] for custom_id in table.column("custom_id").to_pylist())
        homes = items if self._run.session.by_item else itertools.repeat("")
        rows = map(RunRow, itertools.count(), lines, bodies, positions, unshared_bytes(bodies), homes)
        self._replicas.share(list(rows))
        serving = [asyncio.create_task(self._serve_until_over(replica)) for replica in self._replicas]
        try:
            while (self._missing or self._ready) and self._failure is None:
                await self._next()
                for ready in self._take_ready(table):
                    yield ready
            for ready in self._take_ready(table):
                yield ready
            if self._failure is not None:
                raise self._failure
        finally:
            await _cancel(set(serving))

    def _take_ready(self, table: pa.Table) -> Iterator[pa.Table | Death]:
        """Yield what is ready, in its order."""
        ready, self._ready = self._ready, []
        for is_death, entries in itertools.groupby(ready, key=lambda entry: isinstance(entry, Death)):
            if is_death:
                yield from (death for death in entries if isinstance(death, Death))
            else:
                rows = [row for row in entries if isinstance(row, RunRow)]
                replies = [row.reply for row in rows if row.reply is not None]
                yield tables.answers(table.take([row.place for row in rows]), replies)

    async def _next(self) -> None:
        """Wait for answers or deaths: the first one, and those of TOGETHER_SECONDS."""
        self._news.clear()
        while self._missing and not self._ready and self._failure is None:
            seconds = min(self._run.timeouts.start_timeout, starts.UNPLACED_SECONDS)
            try:
                await asyncio.wait_for(self._news.wait(), seconds)
            except TimeoutError:
                self._failure = self._replicas.hopeless()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), TOGETHER_SECONDS)

    def _answer(self, row: RunRow, reply: EngineReply) -> None:
        row.reply = reply
        self._ready.append(row)
        self._missing -= 1
        if reply.death is None:
            self._replicas.answered()
        self._news.set()
        if not self._missing:
            self._over.set()

    def _report(self, death: Death) -> None:
        self._ready.append(death)
        self._news.set()

    def _close(self, refused: Sequence[RunRow] = ()) -> None:
        """Leave the rows that no engine has, since the session is closed: those refused, and all that wait."""
        self._closed = True
        self._missing -= len(refused) + self._replicas.clear()
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
                    await self._replicas.join(replica)
                    continue
                if (suspects := self._isolation.next_group(replica)) is not None:
                    await self._isolation.run_alone(replica, replica.handle, suspects)
                    continue
                rows = self._replicas.take(replica)
                if rows or (replica.sent and not exchanges):
                    exchanges.add(asyncio.create_task(self._exchange(replica, replica.handle, rows)))
                events = {*exchanges, self._replicas.returned}
                await asyncio.wait(events, timeout=SHARE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for exchange in [exchange for exchange in exchanges if exchange.done()]:
                    exchanges.remove(exchange)
                    exchange.result()
        finally:
            await _cancel(exchanges)

    async def _exchange(self, replica: Replica, handle: ActorHandle, rows: list[RunRow]) -> None:
        """Send rows, and take the replies that are ready."""
        requests = [(row.line, row.position, row.unshared_bytes, row.body) for row in rows]
        try:
            call = handle.exchange.remote(self._run.session, self._name, self._run.endpoint, requests)
            replies = await self._replicas.watch(handle, call)
        except EngineDied as death:
            self._isolation.engine_died(replica, handle, death.message)
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
        self._replicas.put_back(replica, refused)
        if unsent:
            self._close(unsent)
        if suspects:
            replica.sent |= {row.line: row for row in suspects}
            self._isolation.engine_died(replica, handle, reason)
        elif refused:
            self._replicas.replace(replica, handle)


def answer(table: pa.Table, run: EngineRun) -> Iterator[pa.Table]:
    """Map the rows of a run to packed answers and deaths as they come."""
    try:
        with closing(answer_here(table, run, threading.Event())) as answers:
            for answered in answers:
                yield from tables.packed(answered)
    except EngineError as error:  # of an exception Ray Data passes on the text only
        yield from tables.packed(error)


def nothing(table: pa.Table) -> Iterator[pa.Table]:
    """Map rows to themselves, as `answer` would: whoever runs it has this module."""
    yield table


def answer_here(table: pa.Table, run: EngineRun, stopped: threading.Event) -> Generator[pa.Table | Death]:
    """Yield answers and deaths as they come, from a caller in this thread."""

    async def begin() -> AsyncGenerator[pa.Table | Death]:
        return EngineCaller(run).answers(table)

    async def following() -> pa.Table | Death | None:
        return await anext(answers, None)

    with asyncio.Runner() as runner:
        loop = runner.get_loop()  # `runner.run` would install a handler of Ctrl-C each time, for 3 ms of CPU
        answers = loop.run_until_complete(begin())
        while True:
            step = loop.create_task(following())
            while not step.done():
                loop.run_until_complete(asyncio.wait([step], timeout=SLICE_SECONDS))
                if stopped.is_set():
                    raise Stopped  # the runner cancels what is under way
            if (answered := step.result()) is None:
                return
            yield answered


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()
