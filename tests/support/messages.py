"""The messages to workers that the code under test sends."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tasks import messages

_FUNCTIONS = (
    *("validate", "advance", "segment", "deliver", "finish"),
    *("validate_job", "advance_job", "finish_job", "stop_engine", "periodic"),
)


class SentMessages:
    """The messages that were sent. None leaves the test.

    Attributes:
        calls: in order, the function of `tasks.messages` and its arguments.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        for name in _FUNCTIONS:
            monkeypatch.setattr(messages, name, partial(self._note, name))

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
