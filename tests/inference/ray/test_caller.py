"""A caller hands on every answer, whenever it comes."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from batchyard.models import ModelSpec
from inference.ray.caller import EngineCaller, EngineRun, Replica
from inference.residents.replies import EngineReply
from inference.residents.session import EngineSession, EngineTimeouts

REPLY = EngineReply(200, b"{}", None, 1, 0, 1, 0.1)


class LateReplies(EngineCaller):
    """All its replies but the first come while the reader is busy with that one."""

    reader_is_busy: asyncio.Event

    async def _serve_until_over(self, replica: Replica) -> None:
        self._answer(replica.waiting.popleft(), REPLY)
        await self.reader_is_busy.wait()
        while replica.waiting:
            self._answer(replica.waiting.popleft(), REPLY)


def test_the_last_answers_come_also_if_their_replies_come_while_the_reader_is_busy() -> None:
    async def answered() -> list[int]:
        session = EngineSession("session", "session", 3, 8)
        caller = LateReplies(
            EngineRun(ModelSpec(name="m", engine="echo"), "/v1/completions", session, EngineTimeouts(9, 9, 9, 9))
        )
        caller.reader_is_busy = asyncio.Event()
        columns = {"position": [0, 1, 2], "line": [1, 2, 3], "custom_id": ["a", "b", "c"], "body": ["{}"] * 3}
        lines = []
        async for table in caller.answers(pa.table(columns)):
            lines += table["line"].to_pylist()
            caller.reader_is_busy.set()
            await asyncio.sleep(0.01)
        return lines

    assert asyncio.run(answered()) == [1, 2, 3]
