"""The audit file: one JSON object a line, appended with one write. It never holds prompts, answers or keys.

It is opened for each line, so that it can be moved away at any time. What cannot be written is logged and counted, and
fails no request.
"""

import logging
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import orjson

from batchyard.errors import ConfigurationError
from batchyard.logs import without_keys
from store.keys import Principal

STDOUT = "stdout"
MAX_TEXT = 256
REFUSALS = (401, 403, 429)
_MODE = 0o600

log = logging.getLogger(__name__)


class AuditLog:
    """Appends lines to a file, or to standard output (`stdout`), and counts lost ones. Raises ConfigurationError."""

    def __init__(self, destination: str, count_lost: Callable[[], object] = lambda: None) -> None:
        self._path = None if destination == STDOUT else destination
        self._count_lost = count_lost
        self._lock = threading.Lock()
        try:
            self._append(b"")
        except OSError as error:
            raise ConfigurationError(
                f"BATCHYARD_AUDIT: {destination} cannot be written: {error.strerror}; name a file that this user may "
                "append to, or stdout."
            ) from error

    def write(
        self, action: str, subject: str | None, by: Principal | None, address: str | None, status: int, request_id: str
    ) -> None:
        """Append a line: an action, named after the route, what it was done to and by whom, if known."""
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": request_id,
            "key": by and by.key_id,
            "name": by and by.name,
            "project": by and by.project_id,
            "action": action,
            "object": None if subject is None else without_keys(subject)[:MAX_TEXT],
            "address": address,
            "status": status,
            "result": "ok" if status < 400 else "refused" if status in REFUSALS else "failed",
        }
        try:
            self._append(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
        except OSError as error:
            log.error("audit line lost: %s", error, extra={"request_id": request_id, "action": action})
            self._count_lost()

    def _append(self, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = 1 if self._path is None else os.open(self._path, flags, _MODE)
        try:
            with self._lock:
                if os.write(descriptor, line) != len(line):
                    raise OSError("it took a part of the line only")
        finally:
            if self._path is not None:
                os.close(descriptor)
