"""Structured logs: one JSON object a line, with the fields of the record's `extra` (`extra={"batch_id": …}`)."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any

# Libraries that log every message or request; our own modules log what matters of them.
_CHATTY = ("celery.worker.strategy", "celery.app.trace", "celery.beat", "httpx", "httpx2")
# A client may send its key where an id belongs.
_SECRET = re.compile(r"(by-[0-9a-f]{8,}-)\w+")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "data", "_ray_timestamp_ns"}


class JsonFormatter(logging.Formatter):
    """Format a record as JSON: time (ISO 8601, UTC), level, logger, message, `extra` fields, and any exception."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{key: value for key, value in vars(record).items() if key not in _STANDARD},
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return without_keys(json.dumps(entry, default=str, ensure_ascii=False))


def without_keys(text: str) -> str:
    """Return a text without the secrets of keys that stand in it."""
    return _SECRET.sub(r"\1…", text)


def configure(level: str) -> None:
    """Write every log of this process to standard error as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


def announce(logger: logging.Logger, message: str, **fields: Any) -> None:
    """Write one line to standard error, in a process whose logs somebody else configures."""
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, message, (), None, extra=fields)
    print(JsonFormatter().format(record), file=sys.stderr, flush=True)
