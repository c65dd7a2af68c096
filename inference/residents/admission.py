"""The admission queue: bounds the requests in an engine and decides which enter next.

Live requests go before those of batches. One that finds no place takes that of a batch's request, the youngest first,
which waits again and runs from its beginning. Live requests that wait for each other enter in turn by project.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from inference.residents.batch_share import BatchShare

Rank = tuple[float, int]
"""The lower rank enters first: the session's rank, then the request's position in the session."""
WHOLE = 2**62
"""Tokens of a request that needs the whole engine: more than any has."""
LOOK_SECONDS = 1.0
"""How often batches that wait for places which are kept for live requests look whether these are still kept."""
BEGIN_SECONDS = 0.01
"""How often batches look whether a request has had its first token, when none may begin before."""


class Preempted(Exception):
    """A live request has the place of this one."""


class _QueueEntry(NamedTuple):
    """A batch request that waits to enter."""

    rank: Rank
    number: int
    need: Callable[[], int]
    admitted: asyncio.Future[None]
    place: _Admitted


@dataclass(eq=False)
class _Admitted:
    """The place of a request in the engine."""

    tokens: int = 0  # expected of it
    # To be cancelled if a live request needs the place; None if it has to stay
    task: asyncio.Task[object] | None = None
    preempted: bool = False  # it has lost the place
    has_begun: Callable[[], bool] = lambda: True  # returns True when the request has a token


@dataclass(eq=False)
class _LiveEntry:
    """A live request that waits to enter."""

    project: str
    need: int
    admitted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class AdmissionQueue:
    """Admits batch requests, the lowest rank first, and live ones before them. A caller can reserve the engine.

    At most `size` batch requests of `tokens` together are inside, and fewer as long as there is live traffic (`share`).
    Live requests have at most `places`. One request is admitted to an empty engine, whatever its tokens.
    """

    def __init__(
        self, size: int, tokens: float = math.inf, *, places: int | None = None, share: BatchShare | None = None
    ) -> None:
        self._size = size
        self._tokens = min(tokens, WHOLE - 1)
        self._places = size if places is None else places
        self._share = share
        self._queue: list[_QueueEntry] = []
        self._number = itertools.count()
        self._batch: dict[_Admitted, None] = {}
        self._beginning: set[_Admitted] = set()
        self._live: Counter[str] = Counter()
        self._live_queue: dict[str, deque[_LiveEntry]] = {}
        self._tokens_inside = 0
        self._drains: deque[asyncio.Future[None]] = deque()
        self._drained = False
        self._look: asyncio.TimerHandle | None = None
        self._shared_seconds = 0.0
        self._shared_at = time.monotonic()
        self.preemptions = 0  # batch requests that have lost their place
        # Called with the task of each before it is cancelled
        self.on_preemption: Callable[[asyncio.Task[object]], None] = lambda _: None

    @property
    def inside(self) -> int:
        """The requests in the engine; one at least while it is reserved."""
        return len(self._batch) + self.live_inside + self._drained

    @property
    def live_inside(self) -> int:
        """The live requests in the engine."""
        return self._live.total()

    @property
    def live_waiting(self) -> int:
        """The live requests that wait to enter."""
        return sum(map(len, self._live_queue.values()))

    @property
    def shared_seconds(self) -> float:
        """The seconds that one request has had of the engine that has been inside all the time.

        Each second is shared evenly among the requests that are inside. So what this grows by while a request is inside
        is that request's share of the engine's time.
        """
        self._share_time()
        return self._shared_seconds

    @contextlib.asynccontextmanager
    async def admit(
        self,
        rank: Rank,
        need: Callable[[], int] = lambda: 0,
        *,
        preemptible: bool = False,
        has_begun: Callable[[], bool] = lambda: True,
    ) -> AsyncIterator[None]:
        """Wait until a batch request of this rank is admitted. It is in the engine until the block ends.

        Args:
            need: returns the tokens that are expected of it. It is called when it is the request's turn, since those
                that were answered meanwhile may have taught better.
            preemptible: a live request may take its place.
            has_begun: returns True when it has a token, and where nobody can tell.

        Raises Preempted: a live request has its place; whatever the block did is cancelled.
        """
        place = _Admitted(has_begun=has_begun)
        entry = _QueueEntry(rank, next(self._number), need, asyncio.get_running_loop().create_future(), place)
        heapq.heappush(self._queue, entry)
        self._admit()
        try:
            await entry.admitted
        except asyncio.CancelledError:
            self._leave(place)  # if it was admitted just now
            raise
        task = asyncio.current_task()
        place.task = task if preemptible else None
        try:
            yield
        except asyncio.CancelledError:
            if place.preempted and task is not None and task.uncancel() == 0:
                raise Preempted from None
            raise
        finally:
            place.task = None
            self._leave(place)

    @contextlib.asynccontextmanager
    async def admit_live(self, project: str, need: int = 0) -> AsyncIterator[None]:
        """Wait until a live request of this project is admitted. `need`: the tokens that are expected of it."""
        entry = _LiveEntry(project, need)
        self._live_queue.setdefault(project, deque()).append(entry)
        self._note_live()
        self._admit()
        try:
            await entry.admitted
        except asyncio.CancelledError:
            if entry.admitted.done() and not entry.admitted.cancelled():
                self._leave_live(entry)
            else:
                self._forget_live(entry)
            raise
        try:
            yield
        finally:
            self._leave_live(entry)

    async def drain(self) -> None:
        """Wait until the engine is empty, ahead of the queue, and admit nothing else until `reopen`."""
        drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drains.append(drained)
        self._admit()
        try:
            await drained
        except asyncio.CancelledError:
            if drained.done() and not drained.cancelled():
                self.reopen()
            else:
                self._admit()
            raise

    def reopen(self) -> None:
        """End the reservation of `drain`."""
        self._drained = False
        self._admit()

    def measured(self, kind: str, seconds: float, times: int = 1) -> None:
        """Note a live request's wait for its first token (`first`) or for a later one (`gap`)."""
        if self._share is not None:
            inside, beginning = len(self._batch), self._batch_beginning
            self._share.measured(time.monotonic(), kind, seconds, inside, times, beginning=beginning)

    def batch_limit(self) -> int:
        """Return how many batch requests may be inside now."""
        return self._size if self._share is None else self._share.limit(time.monotonic())

    def _share_time(self) -> None:
        """Share the time since the last change among those inside. Call it before each change."""
        now, inside = time.monotonic(), self.inside
        if inside:
            self._shared_seconds += (now - self._shared_at) / inside
        self._shared_at = now

    def _leave(self, place: _Admitted) -> None:
        if place in self._batch:
            self._remove(place)
        self._admit()

    def _remove(self, place: _Admitted) -> None:
        self._share_time()
        del self._batch[place]
        self._beginning.discard(place)
        self._tokens_inside -= place.tokens

    def _leave_live(self, entry: _LiveEntry) -> None:
        self._share_time()
        self._live[entry.project] -= 1
        if not self._live[entry.project]:
            del self._live[entry.project]
        self._tokens_inside -= entry.need
        self._note_live()
        self._admit()

    def _forget_live(self, entry: _LiveEntry) -> None:
        waiting = self._live_queue.get(entry.project)
        if waiting is not None and entry in waiting:
            waiting.remove(entry)
            if not waiting:
                del self._live_queue[entry.project]
        self._note_live()

    def _note_live(self) -> None:
        if self._share is not None:
            self._share.live(time.monotonic(), self.live_inside + self.live_waiting)

    def _admit(self) -> None:
        if self._drained:
            return
        while self._drains and self._drains[0].cancelled():
            self._drains.popleft()
        if self._drains:
            if not self.inside:
                self._drained = True
                self._drains.popleft().set_result(None)
            return
        while self._live_queue and self._admit_live():
            pass
        if not self._live_queue:
            self._admit_batch()

    def _admit_live(self) -> bool:
        """Admit the next live request, if need be in the place of a batch's. False if there is no place."""
        project = min(self._live_queue, key=lambda name: self._live[name])
        entry = self._live_queue[project][0]
        if entry.admitted.cancelled():  # its task has not run since
            self._forget_live(entry)
            return True
        while (inside := self.inside) >= self._places or (inside and self._tokens_inside + entry.need > self._tokens):
            youngest = next((place for place in reversed(self._batch) if place.task is not None), None)
            if youngest is None:
                return False
            youngest.preempted = True
            self._remove(youngest)
            self.preemptions += 1
            assert youngest.task is not None
            self.on_preemption(youngest.task)
            youngest.task.cancel()
        # To the end of the projects, so that those with as many inside take turns.
        waiting = self._live_queue.pop(project)
        waiting.popleft()
        if waiting:
            self._live_queue[project] = waiting
        self._share_time()
        self._live[project] += 1
        self._tokens_inside += entry.need
        entry.admitted.set_result(None)
        return True

    def _batch_beginning(self) -> int:
        """Return how many requests of batches in the engine have no token yet."""
        self._beginning -= {place for place in self._beginning if place.has_begun()}
        return len(self._beginning)

    def _admit_batch(self) -> None:
        limit = self.batch_limit()
        aside: list[_QueueEntry] = []
        beginning_limit = self._size if self._share is None else self._share.beginning_limit(time.monotonic())
        while self._queue:
            _, _, need, admitted, place = self._queue[0]
            if not admitted.cancelled():
                if len(self._batch) >= limit:
                    if limit < self._size:
                        self._look_again(LOOK_SECONDS)
                    break
                if len(self._beginning) >= beginning_limit and self._batch_beginning() >= beginning_limit:
                    self._look_again(BEGIN_SECONDS)
                    break
                place.tokens = need()
                if self.inside == 0 or self._tokens_inside + place.tokens <= self._tokens:
                    self._share_time()
                    self._batch[place] = None
                    self._beginning.add(place)
                    self._tokens_inside += place.tokens
                    admitted.set_result(None)
                elif place.tokens >= WHOLE and self._live:
                    aside.append(self._queue[0])  # live requests may never leave it the engine: the others go on
                else:
                    break
            heapq.heappop(self._queue)
        for entry in aside:
            heapq.heappush(self._queue, entry)

    def _look_again(self, seconds: float) -> None:
        """Admit again in a moment: what is kept for live requests becomes free without a word of anybody."""
        loop = asyncio.get_running_loop()
        if self._look is not None and self._look.when() > loop.time() + seconds:
            self._look.cancel()
            self._look = None
        if self._look is None:

            def look() -> None:
                self._look = None
                self._admit()

            self._look = loop.call_later(seconds, look)
