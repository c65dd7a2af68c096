"""An OpenAI-compatible server that misbehaves as servers do. The first word of the last message says how."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.support.servers import Reply, Server

MODEL = "fake-2026-08-06"
QUOTA = "Your quota is used up; see your plan."
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 64,
    "total_tokens": 71,
    "completion_tokens_details": {"reasoning_tokens": 60},
}


@dataclass
class MisbehavingServer(Server):
    """EMPTY, NULL, BROKEN, THINK, QUOTA and FLAKY; all else is given back.

    Attributes:
        fail_first: FLAKY answers 500 to so many attempts at one prompt.
        has_quota: what QUOTA asks for is answered.
    """

    fail_first: int = 5
    has_quota: bool = False
    attempts: Counter[str] = field(default_factory=Counter)

    def chosen(self, body: dict[str, Any]) -> Reply:
        text = body["messages"][-1]["content"]
        word = text.split()[0]
        with self.lock:
            self.asked.append((time.monotonic(), body))
            self.attempts[text] += 1
            attempt = self.attempts[text]
        if "max_tokens" in body:
            return _error(400, "'max_tokens' is not supported with this model.", "unsupported_parameter")
        if word == "QUOTA" and not self.has_quota:
            return _error(429, QUOTA, "insufficient_quota")
        if word == "FLAKY" and attempt <= self.fail_first:
            return _error(500, "upstream restarted", "server_error")
        message: dict[str, Any] = {"role": "assistant", "content": text}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": message}
        choices: Any = [choice]
        if word == "THINK":
            choice["finish_reason"] = "length"
            message |= {"content": None, "reasoning_content": "let me see, first I"}
        if word == "BROKEN":
            choice |= {"finish_reason": "error", "error": {"code": 400, "message": "Upstream error"}}
        choices = {"EMPTY": [], "NULL": [None]}.get(word, choices)
        return Reply(body=json.dumps({"id": "1", "model": MODEL, "usage": USAGE, "choices": choices}).encode())


def _error(status: int, message: str, code: str) -> Reply:
    error = {"message": message, "type": code, "param": None, "code": code}
    return Reply(status, body=json.dumps({"error": error}).encode())
