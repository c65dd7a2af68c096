"""The messages to workers that the code under test sends."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from jobs import messages as job_messages
from tasks import messages

_FUNCTIONS = {
    **{name: (messages, name) for name in ("validate", "advance", "segment", "deliver", "finish", "steps", "periodic")},
    **{f"{name}_job": (job_messages, name) for name in ("validate", "advance", "finish")},
    "stop_engine": (job_messages, "stop_engine"),
}


class SentMessages:
    """The messages that were sent. None leaves the test.

    Attributes:
        calls: in order, the name of the message, and the arguments of the function that sends it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        for name, (module, function) in _FUNCTIONS.items():
            monkeypatch.setattr(module, function, partial(self._note, name))

    def _note(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, arguments))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """Return the arguments of each call of a function."""
        return [arguments for called, arguments in self.calls if called == name]

    def ids(self, name: str) -> list[Any]:
        """Return the id of what each call of a function was about."""
        return [arguments[0] for arguments in self.of(name)]

    def dispatched(self) -> list[str]:
        """Return the id of the batch of each segment that was sent."""
        return [batch_id for _, _, batch_id, *_ in self.of("segment")]
