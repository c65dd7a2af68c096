"""The lines of a local stack's logs that concern some batches or jobs, in order of time.

They are the JSON lines of the stack's own processes that name one of the ids, and the output of the engines of some
models, which Ray keeps. Both hold no prompts, but a line in which vLLM logs a request would, so it is left out.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

ENGINE_START, ENGINE_STARTED = "engine starts", "engine started"
ENGINE_STARTS = f'"message": "{ENGINE_START}"'
"""In the line by which an engine's actor names its model."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_MARKERS = re.compile(r":(job_id|actor_name|task_name):")
_REQUEST = "Received request"
# vLLM's lines have no year: `(EngineCore pid=7) INFO 11-25 08:03:10 [core.py:94] …`. Other programs' have one.
_TIME = re.compile(r"(?:(?P<year>\d{4})-)?(?P<month>\d\d)-(?P<day>\d\d)[ T](?P<clock>\d\d:\d\d:\d\d)")
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")


@dataclass(frozen=True)
class LogLine:
    """A log line with its time in Unix seconds; fields are `time`, `level`, `file`, `message` and more."""

    at: float
    fields: dict[str, Any]


class LogLines:
    """Reads the logs of a local stack; each call returns what is new since the last one."""

    def __init__(self, logs: Path, ray: Path) -> None:
        self._logs = logs
        self._ray = ray
        self._offsets: dict[Path, int] = {}
        self._models: dict[Path, str] = {}
        self._times: dict[Path, float] = {}

    def read(
        self, ids: Collection[str], models: Collection[str], *, since: float, until: float = float("inf")
    ) -> list[LogLine]:
        """Return new lines that name one of the ids or come from these models' engines, by time."""
        lines = [
            *(line for path in self._logs.glob("*.log*") for line in self._of_services(path, ids)),
            *(line for path in self._ray.glob("session_2*/logs/worker-*") for line in self._of_engines(path, models)),
        ]
        return sorted((line for line in lines if since <= line.at <= until), key=lambda line: line.at)

    def _of_services(self, path: Path, ids: Collection[str]) -> Iterator[LogLine]:
        for text in self._new(path):
            if text.startswith("{") and any(name in text for name in ids):
                line = _parsed(text, path.name)
                if line is not None and not (
                    line.fields.get("logger") == "webapp"
                    and str(line.fields.get("message")).startswith(("GET ", "HEAD "))
                    and int(line.fields.get("status") or 0) < 400
                ):
                    yield line

    def _of_engines(self, path: Path, models: Collection[str]) -> Iterator[LogLine]:
        model = self._model(path)
        if model is None or model not in models:
            return
        for text in self._new(path):
            # Of a bar of progress only its last state counts.
            text = _ESCAPES.sub("", text).rstrip().rpartition("\r")[2]
            if not text or _MARKERS.match(text) or _REQUEST in text:
                continue
            line = (text.startswith("{") and _parsed(text, path.name)) or self._plain(path, text)
            self._times[path] = line.at
            yield LogLine(line.at, {**line.fields, "file": "engine", "model": model})

    def _plain(self, path: Path, text: str) -> LogLine:
        """Give an engine's line its time, else that of the line before."""
        match, level = _TIME.search(text[:80]), _LEVEL.search(text[:80])
        began = datetime.fromtimestamp(path.stat().st_mtime)
        at = self._times.get(path, began.timestamp())
        if match is not None:
            date = f"{match['year'] or began.year}-{match['month']}-{match['day']}T{match['clock']}"
            try:
                at = datetime.fromisoformat(date).timestamp()
            except ValueError:
                match = None
        time = datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")
        return LogLine(at, {"time": time, "level": level[1].lower() if level else "info", "message": text})

    def _model(self, path: Path) -> str | None:
        """Return the model of an engine's output, which its actor has named on standard error."""
        key = path.with_suffix(".err")
        if key not in self._models and key.is_file():
            with key.open(errors="replace") as stream:
                for text in stream:
                    if ENGINE_STARTS in text and (line := _parsed(text, key.name)):
                        self._models[key] = str(line.fields["model"])
                        break
        return self._models.get(key)

    def _new(self, path: Path) -> Iterator[str]:
        """Yield the whole lines added since the last call; a truncated file is read anew."""
        try:
            with path.open("rb") as stream:
                before = self._offsets.get(path, 0)
                self._offsets[path] = stream.seek(before if before <= path.stat().st_size else 0)
                for line in stream:
                    if not line.endswith(b"\n"):
                        return
                    self._offsets[path] += len(line)
                    yield line.decode(errors="replace")
        except OSError:
            return  # removed meanwhile


def without_starts(lines: Sequence[LogLine]) -> list[LogLine]:
    """Leave out what engines print while they start, of level info, where the start succeeds."""
    began: dict[str, float] = {}
    starts: list[tuple[str, float, float]] = []
    for line in lines:
        model, message = str(line.fields.get("model")), line.fields.get("message")
        if message == ENGINE_START:
            began[model] = line.at
        elif message == ENGINE_STARTED and model in began:
            starts.append((model, began.pop(model) - 1, line.at + 1))  # lines of vLLM have whole seconds
    return [line for line in lines if not any(_is_of_start(line, *start) for start in starts)]


def _is_of_start(line: LogLine, model: str, began: float, ended: float) -> bool:
    fields = line.fields
    is_plain = fields["file"] == "engine" and "logger" not in fields and fields["level"] in ("info", "debug")
    return is_plain and fields["model"] == model and began <= line.at <= ended


def _parsed(text: str, file: str) -> LogLine | None:
    try:
        fields = json.loads(text)
        return LogLine(datetime.fromisoformat(fields["time"]).timestamp(), {**fields, "file": file})
    except (ValueError, KeyError, TypeError):
        return None
