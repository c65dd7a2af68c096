"""Warnings: what in a request is most likely a mistake, though an engine that ignores it answers."""

from collections.abc import Iterable
from typing import Any

from batchyard.endpoints.bodies.validation import misspelt
from batchyard.request_lines.lines import LineError, parse
from batchyard.wording import MAX_MESSAGE, MAX_NAME, cut

MOST = 20
"""Most warnings of one batch."""
_MOST_NAMES = 1000
"""Names that are compared with those of the API, which takes a while."""


class ParameterWarnings:
    """The first line of each misspelt parameter in a batch's requests."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._names = set[str]()
        self.entries: list[dict[str, Any]] = []  # as those of a batch's `errors.data`, at most MOST

    def add(self, line: int, names: Iterable[str]) -> None:
        """Look at the names of a body's parameters."""
        new = [name for name in names if name not in self._names]
        if not new or len(self._names) >= _MOST_NAMES or len(self.entries) >= MOST:
            return
        self._names.update(new)
        for param, message in misspelt(self._endpoint, new):
            entry = {"code": "misspelt_parameter", "line": line}
            self.entries.append(entry | {"message": cut(message, MAX_MESSAGE), "param": cut(param, MAX_NAME)})


def of_line(endpoint: str, number: int, raw: bytes) -> list[dict[str, Any]]:
    """Return the warnings of one line of a batch file; none of a line that is no request."""
    warnings = ParameterWarnings(endpoint)
    try:
        body = parse(number, raw).get("body")
    except LineError:
        return []  # validation says why
    warnings.add(number, body if isinstance(body, dict) else ())
    return warnings.entries
