"""Isolation of requests that kill engines.

If an engine dies and no other replica is there, or a row was in a second engine that died, any of its rows may be the
reason. They run again on a fresh engine with nothing else in it, in halves, until the one that kills engines is alone.
It is answered `engine_died`; all others get their answers.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ray.actor import ActorHandle

from batchyard.errors import EngineDied
from batchyard.models import ModelSpec
from batchyard.statuses import AfterDeath
from inference.ray.replicas import Replica, Replicas, RunRow
from inference.residents.replies import ENGINE_DIED, EngineReply

STRIKES = 2
RETURN_SECONDS = 30.0
"""A replica that died and is not back after so long leaves its suspects to those that are there."""

log = logging.getLogger(__name__)


@dataclass
class Isolation:
    """The suspects of one run."""

    spec: ModelSpec
    endpoint: str
    replicas: Replicas
    answer: Callable[[RunRow, EngineReply], None]  # called with each row that has its reply

    def next_group(self, replica: Replica) -> list[RunRow] | None:
        """Take the next group to run alone: of this replica, or of one that does not come back."""
        absent = (one for one in self.replicas if one.absent_seconds() >= RETURN_SECONDS)
        for owner in (replica, *absent):
            if owner.suspects:
                return owner.suspects.pop()
        return None

    def engine_died(self, replica: Replica, handle: ActorHandle, reason: str) -> None:
        """Count the death of an engine. Rows that may be the reason become suspects; the others wait again."""
        if replica.handle is not handle:
            return  # another call has reported it
        rows, replica.sent = list(replica.sent.values()), {}
        for row in rows:
            row.deaths += 1
        others = any(one.handle is not None for one in self.replicas if one is not replica)
        suspects = [row for row in rows if row.deaths >= STRIKES or not others]
        following: AfterDeath = "runs_alone" if suspects else "runs_again" if rows else "starts_again"
        self.replicas.lost(replica, handle, reason, len(rows), following)
        self.replicas.put_back(replica, [row for row in rows if row.deaths < STRIKES and others])
        if suspects:
            replica.suspects.append(suspects)

    async def run_alone(self, replica: Replica, handle: ActorHandle, rows: list[RunRow]) -> None:
        """Run rows in an engine with nothing else in it. If they kill it, their halves run next."""
        replies, death = await self._replies(replica, handle, rows)
        for row, reply in zip(rows, replies or (), strict=False):
            if reply.death is None:
                self.answer(row, reply)
            else:
                death = reply.death
        requests, rows = len(rows), [row for row in rows if row.reply is None]
        if death is None:
            if replies is None:
                self.replicas.replace(replica, handle)
            replica.suspects += [rows] if rows else []
            return
        is_last = len(rows) == 1 and rows[0].strikes + 1 == STRIKES
        self.replicas.lost(replica, handle, death, requests, "request_fails" if is_last else "runs_alone")
        if len(rows) == 1:
            rows[0].strikes += 1
        if is_last:
            engine = f"engine {self.spec.engine} of model {self.spec.name}"
            message = f"{engine} died each time it ran this request alone: {death}"
            log.warning(message, extra={"model": self.spec.name})
            self.answer(rows[0], EngineReply.failed(ENGINE_DIED, message))
        else:
            middle = len(rows) // 2
            replica.suspects += [half for half in (rows[middle:], rows[:middle]) if half]

    async def _replies(
        self, replica: Replica, handle: ActorHandle, rows: list[RunRow]
    ) -> tuple[list[EngineReply] | None, str | None]:
        """Return the replies to rows that run alone, or None and why the engine died."""
        try:
            permit = await self.replicas.watch(handle, handle.reserve.remote())
        except EngineDied as death:  # none of these rows was in it
            self.replicas.lost(replica, handle, death.message, 0, "starts_again")
            return None, None
        if permit is None:
            return None, None
        bodies = [row.body for row in rows]
        try:
            return await self.replicas.watch(handle, handle.answer_alone.remote(self.endpoint, bodies, permit)), None
        except EngineDied as death:
            return None, death.message
