"""Chats: questions to a model in turn, answered by live requests as their tokens come."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from batchyard.client.api import ApiClient
from batchyard.endpoints.catalog import CHAT


@dataclass
class ChatReply:
    """An answer, as far as it has come."""

    model: str
    content: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    simulated: bool = False
    seconds: float = 0.0
    first_seconds: float | None = None  # from the question to its first piece; None before that
    rate: float | None = None  # tokens a second after the first one; None if it came in few pieces

    def document(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "content": self.content,
            "reasoning": self.reasoning or None,
            "finish_reason": self.finish_reason,
            "usage": self.usage or None,
            "simulated": self.simulated,
            "seconds": round(self.seconds, 4),
            "ttft_seconds": None if self.first_seconds is None else round(self.first_seconds, 4),
            "tokens_per_second": None if self.rate is None else round(self.rate, 2),
        }


MIN_PIECES = 4
"""Of an answer in fewer pieces nobody knows when each token was there."""


class Chat:
    """A conversation. `parameters`: those of every request, such as `temperature`."""

    def __init__(
        self, server: ApiClient, model: str, system: str | None = None, parameters: Mapping[str, Any] | None = None
    ) -> None:
        self.model = model
        self.system = system
        self._server = server
        self._parameters = dict(parameters or {})
        self._turns: list[dict[str, str]] = []
        self.reply = ChatReply(model)

    def reset(self) -> None:
        self._turns.clear()

    def ask(self, question: str) -> Iterator[str]:
        """Send a question, and yield the pieces of the answer; `reply` then has all of it.

        An answer that is not read to its end ends there, and stays in the conversation as far as it came.

        Raises BatchyardError: there is no whole answer; the question is forgotten.
        """
        system = [{"role": "system", "content": self.system}] if self.system else []
        asked = {"role": "user", "content": question}
        body = {
            "model": self.model,
            "messages": [*system, *self._turns, asked],
            "stream_options": {"include_usage": True},
            **self._parameters,
        }
        self.reply = reply = ChatReply(self.model)
        began, pieces, last = time.monotonic(), 0, 0.0
        try:
            for event in self._server.stream(CHAT.path.removeprefix("/v1"), body):
                piece = _read(event, reply)
                if piece is not None:
                    pieces, last = pieces + 1, time.monotonic() - began
                    reply.first_seconds = last if reply.first_seconds is None else reply.first_seconds
                    yield piece
        except (GeneratorExit, KeyboardInterrupt):
            self._keep(asked, reply)
            raise
        reply.seconds = time.monotonic() - began
        tokens = reply.usage.get("completion_tokens") or 0
        if pieces > MIN_PIECES and tokens > 1 and last > (reply.first_seconds or 0.0):
            reply.rate = (tokens - 1) / (last - (reply.first_seconds or 0.0))
        self._keep(asked, reply)

    def _keep(self, asked: dict[str, str], reply: ChatReply) -> None:
        if reply.content:
            self._turns += [asked, {"role": "assistant", "content": reply.content}]


def _read(event: Mapping[str, Any], reply: ChatReply) -> str | None:
    """Add an event to the reply, and return the piece of text that it brings, if any."""
    reply.simulated = reply.simulated or bool(event.get("simulated"))
    reply.usage = event.get("usage") or reply.usage
    choice: Mapping[str, Any] = next(iter(event.get("choices") or ()), {})
    reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
    delta = choice.get("delta") or {}
    thought, text = delta.get("reasoning_content") or delta.get("reasoning") or "", delta.get("content") or ""
    reply.reasoning += thought
    reply.content += text
    return text or thought or None
