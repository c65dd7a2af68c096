"""Results: the requests of a batch that has ended, each beside its line of the output or the error file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import orjson

from batchyard.errors import BatchyardError


@dataclass(frozen=True)
class Row:
    """One request of a finished batch and what became of it."""

    line: int
    custom_id: str
    body: dict[str, Any]
    status_code: int | None
    response: dict[str, Any] | None
    error: dict[str, Any] | None

    @property
    def text(self) -> str | None:
        """The first choice's text, for chat and completions that were answered; None otherwise."""
        if self.status_code != 200 or self.response is None or not self.response.get("choices"):
            return None
        choice = self.response["choices"][0]
        content = choice["message"].get("content") if "message" in choice else choice.get("text")
        return content if isinstance(content, str) else None


def rows(source: IO[bytes], output: Iterable[bytes], errors: Iterable[bytes]) -> Iterator[Row]:
    """The requests of a batch in input order, each with its line of the output or the error file."""
    files = (_Lines(output), _Lines(errors))
    for number, raw in enumerate(source, 1):
        if not raw.strip():
            continue
        request = orjson.loads(raw)
        custom_id = request["custom_id"]
        file = next((lines for lines in files if lines.next_id == custom_id), None)
        if file is None:
            raise BatchyardError(f"line {number}: no answer in either file")
        found = file.take()
        response = found["response"] or {}
        yield Row(number, custom_id, request["body"], response.get("status_code"), response.get("body"), found["error"])


class _Lines:
    """The lines of one file, with a look at the next."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self._advance()

    def _advance(self) -> None:
        raw = next(self._lines, None)
        self._next: dict[str, Any] = orjson.loads(raw) if raw else {}

    @property
    def next_id(self) -> str | None:
        return self._next.get("custom_id")

    def take(self) -> dict[str, Any]:
        taken = self._next
        self._advance()
        return taken
