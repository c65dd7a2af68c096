"""Calls of tools by a job's items: their keys, which may be made, and what becomes of one that a crash has cut off."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import orjson

from batchyard import json_lines
from batchyard.comparing import schemas
from batchyard.recipes import Call, Called, Item, Tool
from batchyard.wording import quoted, suggestion
from recipes.tools.pool import INTERRUPTED


@dataclass(frozen=True)
class Tools:
    """The tools of a job. `is_under_way` says if this process makes a call or has its outcome."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    job_id: str = ""
    is_under_way: Callable[[str], bool] = lambda key: False

    def key(self, item: Item, turn: int, index: int, call: Call) -> str:
        """Return the idempotency key of a call: no other call has it, and the same call has it after a crash."""
        place = [self.job_id, item.custom_id, item.life, turn, index, call.tool, call.arguments]
        return hashlib.blake2b(json_lines.dumps(place, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()

    def is_retriable(self, call: Call) -> bool:
        """True for a call that may be made again. One of a tool that is there no more may not."""
        tool = self.tools.get(call.tool)
        return tool is not None and tool.mode == "retriable"

    def refusal(self, call: Call) -> Called | None:
        """Return why a call cannot be made; None if it can."""
        tool = self.tools.get(call.tool)
        if tool is None:
            remedy = suggestion(call.tool, self.tools, sentence=True)
            return Called.failed("tool_not_found", f"No tool is named {quoted(call.tool)}. {remedy}")
        violation = schemas.violation(tool.parameters, call.arguments)
        return None if violation is None else Called.failed("invalid_arguments", violation)

    def interruption(self, call: Call, key: str) -> Called | None:
        """Return the outcome of a call that had begun before a crash; None if it goes on, or may be made again."""
        if self.is_retriable(call) or self.is_under_way(key):
            return None
        return Called(False, error=dict(INTERRUPTED))
