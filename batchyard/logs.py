"""Structured logs: one JSON object a line, with whatever ids the record was given (`extra={"batch_id": …}`)."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

# Libraries that tell of every message and request; ours are told of by the modules that handle them.
_CHATTY = ("celery.worker.strategy", "celery.app.trace", "celery.beat", "httpx", "httpx2")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "data", "_ray_timestamp_ns"}


class JsonFormatter(logging.Formatter):
    """time (ISO 8601, UTC), level, logger, message, the record's own fields, and the exception if there is one."""

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
        return json.dumps(entry, default=str, ensure_ascii=False)


def configure(level: str) -> None:
    """Send every log of this process to standard error as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
