"""The replicas of a run: the rows of each, and its life from start to death."""

import asyncio
import itertools
import logging
import math
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError, RayTaskError

from batchyard.errors import EngineDied, EngineError, EngineStartError
from batchyard.failures.reasons import explained
from batchyard.models import ModelSpec
from batchyard.statuses import AfterDeath
from inference.answers import Death
from inference.ray import starts
from inference.ray_internals import actor_id
from inference.residents.actor import get_or_create_engine
from inference.residents.replies import EngineReply
from inference.residents.session import EngineSession, EngineTimeouts

DEATHS_IN_A_ROW = 4
"""Deaths without an answer in between, beyond those that it takes to halve a full engine down to one row."""
DEATHS = 40
"""Most deaths in one run; each costs an engine start."""
PING_SECONDS = 10.0
SHARE_SECONDS = 1.0
"""A replica that is not there for so long leaves its rows to the others."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class RunRow:
    """One row of a run: a request, and its reply once it has one."""

    place: int  # its index in the table
    line: int
    body: str
    position: int
    unshared_bytes: int  # see inference.requests.cache_need
    item: str = ""  # whose turn it is, in a run by items
    reply: EngineReply | None = None
    deaths: int = 0  # of engines that had it among others
    strikes: int = 0  # deaths of engines that had it alone


@dataclass(eq=False)
class Replica:
    """One engine actor as this caller sees it: there, with a handle, or joining."""

    index: int
    handle: ActorHandle | None = None
    waiting: deque[RunRow] = field(default_factory=deque)  # its share of the rows that were not sent yet
    sent: dict[int, RunRow] = field(default_factory=dict)  # rows whose reply is missing, by line
    # Groups of rows, of which any may have killed the engine
    suspects: list[list[RunRow]] = field(default_factory=list)
    absent_since: float = field(default_factory=time.monotonic)  # when it was not there any more; time.monotonic()
    failure: EngineStartError | None = None  # why it could not start; None if it is there or was not tried yet
    starting: ActorHandle | None = None  # the actor that does not run yet

    def absent_seconds(self) -> float:
        """Return for how long it has not been there; infinite if it cannot start."""
        if self.handle is not None:
            return 0.0
        return time.monotonic() - self.absent_since if self.failure is None else math.inf


@dataclass(eq=False)
class Replicas:
    """The replicas of one run.

    Each has one stretch of the rows, because requests with a common prefix stand together there. A replica whose
    stretch is done takes over from the others. In a run by items the turns of an item go to the replica that has had
    the turns before, also in other runs: another takes them only if that one is full, or is not there.

    `returned`: done when rows came back that another replica may take; then there is a new one.
    """

    spec: ModelSpec
    session: EngineSession
    timeouts: EngineTimeouts
    on_death: Callable[[Death], None]  # called once with each death of an engine

    def __post_init__(self) -> None:
        chosen = self.session.replica
        self._all = [Replica(index) for index in range(self.spec.replicas) if chosen in (None, index)]
        self.returned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._dead: set[str] = set()
        self._deaths = 0
        self._deaths_in_a_row = 0

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._all)

    def share(self, rows: list[RunRow]) -> None:
        """Give each replica a stretch of the rows, or the rows of its items."""
        if self.session.by_item:
            for row in rows:
                self._all[zlib.crc32(row.item.encode()) % len(self._all)].waiting.append(row)
            return
        stretch = math.ceil(len(rows) / len(self._all))
        # Small runs do not all begin with the same replica. A later run of the same work finds its replies again.
        first = zlib.crc32(self.session.idempotency_key.encode())
        for number, start in enumerate(range(0, len(rows), stretch)):
            self._all[(first + number) % len(self._all)].waiting.extend(rows[start : start + stretch])

    def take(self, replica: Replica) -> list[RunRow]:
        """Take the rows that the replica may get now: of its own, else of those who have the most."""
        free = self.session.in_flight - len(replica.sent)
        rows = [replica.waiting.popleft() for _ in range(min(free, len(replica.waiting)))]
        if not rows and not replica.waiting and free > 0:
            others = [one for one in self._all if one.absent_seconds() >= SHARE_SECONDS or self._may_leave(one)]
            longest = max(others, key=lambda one: len(one.waiting), default=replica)
            share = len(longest.waiting) if longest.handle is None else math.ceil(len(longest.waiting) / 2)
            rows = [longest.waiting.pop() for _ in range(min(free, share))][::-1]
        replica.sent |= {row.line: row for row in rows}
        return rows

    def _may_leave(self, replica: Replica) -> bool:
        """True if others may take rows of a replica that is there."""
        is_full = len(replica.sent) >= self.session.in_flight
        return replica.handle is not None and (is_full or not self.session.by_item)

    def put_back(self, replica: Replica, rows: Sequence[RunRow]) -> None:
        """Put rows back that were not run, first in the order, and let all replicas look for work."""
        if rows:
            replica.waiting.extendleft(sorted(rows, key=lambda row: -row.position))
            self.returned.set_result(None)
            self.returned = asyncio.get_running_loop().create_future()

    def clear(self) -> int:
        """Drop the rows that no engine has, and return their number."""
        dropped = sum(len(replica.waiting) + sum(map(len, replica.suspects)) for replica in self._all)
        for replica in self._all:
            replica.waiting.clear()
            replica.suspects.clear()
        return dropped

    async def join(self, replica: Replica) -> None:
        """Take in a replica, with failed starts repeated. Raises EngineError if no replica can start."""
        replica.failure = None
        for failures in itertools.count(1):
            handle = replica.starting = get_or_create_engine(self.spec, self.timeouts.request_timeout, replica.index)
            try:
                result = await awaited(handle.ready.remote(self.timeouts.idle_seconds))
            except RayError as error:
                result = error
            start = starts.outcome(self.spec, handle, result)
            if start.engine is not None:
                replica.handle, replica.failure, replica.starting = handle, None, None
                return
            if start.death is not None:
                fruitless = not any(one.handle is not None for one in self._all)
                self._count_death(replica, handle, start.death, fruitless=fruitless)
            if isinstance(start.failure, EngineStartError):
                replica.failure = start.failure
                if all(one.failure is not None for one in self._all):
                    raise replica.failure
            await asyncio.sleep(starts.BACKOFF.seconds(failures))

    def hopeless(self) -> EngineStartError | None:
        """Return why no replica will come; None if one is there or may come."""
        seconds = min(replica.absent_seconds() for replica in self._all)
        starting = [replica.starting for replica in self._all if replica.starting is not None]
        error = starts.hopeless(self.spec, starting, seconds, self.timeouts.start_timeout)
        failures = [replica.failure for replica in self._all if replica.failure is not None]
        return error and (failures[0] if failures else error)

    async def watch(self, handle: ActorHandle, reference: Any) -> Any:
        """Return a call's result, waiting while the engine works. Raises EngineDied; EngineError if it fails."""
        patience = self.timeouts.request_timeout + self.timeouts.hang_margin
        ping = min(PING_SECONDS, self.timeouts.hang_margin)
        call = asyncio.ensure_future(awaited(reference))
        while not (await asyncio.wait([call], timeout=patience))[0]:
            try:
                quiet = await asyncio.wait_for(awaited(handle.quiet.remote()), ping)
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
            raise EngineDied(starts.death_reason(error)) from error
        except RayTaskError as error:
            raise EngineError(f"engine {self.spec.engine} of model {self.spec.name}: {error.cause!r}") from error

    def answered(self) -> None:
        """Note an answer: deaths after it are not in a row with those before."""
        self._deaths_in_a_row = 0

    def replace(self, replica: Replica, handle: ActorHandle) -> None:
        """Forget an engine that stopped or died. Its rows wait for another."""
        if replica.handle is handle:
            replica.handle, replica.absent_since = None, time.monotonic()
            rows, replica.sent = list(replica.sent.values()), {}
            self.put_back(replica, rows)
            ray.kill(handle)

    def lost(self, replica: Replica, handle: ActorHandle, reason: str, requests: int, following: AfterDeath) -> None:
        """Replace an engine that died. Count its death once, however many calls report it."""
        if replica.handle is handle:
            self.replace(replica, handle)
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
        """Report the death of an engine, once. Only a `fruitless` one counts: no other replica goes on."""
        engine = actor_id(handle)
        if engine in self._dead:
            return
        self._dead.add(engine)
        self._deaths += int(fruitless)
        self._deaths_in_a_row += int(fruitless)
        most_in_a_row = self.session.in_flight.bit_length() + DEATHS_IN_A_ROW
        too_many = fruitless and (self._deaths_in_a_row > most_in_a_row or self._deaths > DEATHS)
        if too_many:
            following = "ends_run"
        log.warning("engine died", extra={"model": self.spec.name, "reason": reason, "deaths": self._deaths})
        self.on_death(Death(self.spec.name, engine, replica.index, reason, requests, following))
        if too_many:
            raise EngineError(
                f"engine {self.spec.engine} of model {self.spec.name} died {self._deaths} times in one run, "
                f"{self._deaths_in_a_row} of them without an answer between: {reason}"
            )


async def awaited(reference: Any) -> Any:
    """Return the value of Ray's reference, as a coroutine, which a reference is not."""
    return await reference
