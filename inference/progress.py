"""The progress of a request in its engine: tokens as the engine counts them, and when they came."""

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(eq=False)
class RequestProgress:
    """What an engine has computed of one request so far."""

    live: bool = False  # somebody waits for it now; a request of a batch can wait
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    began_at: float = field(default_factory=time.monotonic)  # when it arrived at the engine; time.monotonic()
    first_at: float | None = None  # when its first token came; None before
    last_at: float | None = None
    # Under which an engine keeps it, for engines that can be asked for it
    request_ids: list[str] = field(default_factory=list)
    on_first: Callable[[float], None] | None = None
    # Called with the seconds between two tokens, and the number of tokens that came with the second
    on_gap: Callable[[float, int], None] | None = None

    def add(self, tokens: int) -> None:
        """Count output tokens that came now."""
        if tokens:
            self.output_tokens += tokens
            self.note(tokens)

    def note(self, tokens: int = 1) -> None:
        """Note that output tokens came now, which are counted otherwise."""
        now = time.monotonic()
        if self.first_at is None:
            self.first_at = now
            if self.on_first is not None:
                self.on_first(now - self.began_at)
        elif self.last_at is not None and self.on_gap is not None:
            self.on_gap((now - self.last_at) / tokens, tokens)
        self.last_at = now


PROGRESS: ContextVar[RequestProgress | None] = ContextVar("progress", default=None)
"""The progress of the request that this task answers. Engines write to it."""
