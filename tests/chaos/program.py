"""The job that a campaign of kills runs again and again."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from inference.engines.echo_bodies import prompt_text


def first_word(_: Path, line: str) -> str:
    """Return the name of the request that stands in a line of a log of calls: its first word."""
    return line.partition(" ")[0]


@dataclass(frozen=True)
class Program:
    """A job. All runs differ in their tag alone, which begins the names of a run's requests: `<tag>-<item>…`.

    Attributes:
        summary: what it is, for the report.
        models: models.toml, in which {calls} is the folder for the engines' logs of calls.
        logs: the names of these logs.
        rows: returns the rows of a run with this tag.
        requests: returns how often each request of such a run is made, without the probes of reviewers.
        ends: items by the state in which they end.
        body: returns the body of POST /v1/jobs for a file of these rows.
        artifacts: those that must be the same after each run.
        name_of: returns the name of the request that a line of a log belongs to; empty for any other line.
        files: more files for BATCHYARD_RECIPES, in which {calls} is the folder for logs, too.
        interrupted: returns the number and the turns of an item, by its line of the results, whose call of a tool was
            interrupted, so that it made no request behind that turn; None of other items.
        passes: says if the nth verdict of an item is that it passes, from 0; None: no item waits for one.
    """

    summary: str
    models: str
    logs: tuple[str, ...]
    rows: Callable[[str], Iterable[dict[str, Any]]]
    requests: Callable[[str], Counter[str]]
    ends: Counter[str]
    body: Callable[[str], dict[str, Any]]
    artifacts: tuple[str, ...]
    name_of: Callable[[Path, str], str] = first_word
    files: Mapping[str, str] = field(default_factory=dict)
    interrupted: Callable[[bytes], tuple[str, int] | None] | None = None
    passes: Callable[[int, int], bool] | None = None

    @property
    def items(self) -> int:
        return self.ends.total()

    @cached_property
    def _logs(self) -> dict[str, Path]:
        """The log of calls of each model."""
        models = tomllib.loads(self.models)["models"]
        return {name: Path(model["engine_args"]["call_log"]) for name, model in models.items()}

    def name_in(self, model: str, body: Mapping[str, Any]) -> str:
        """Return the name that a request to a model has in the log of calls, by its body; empty if it has none."""
        names = (self.name_of(self._logs[model], line) for line in prompt_text(body).splitlines())
        return next(filter(None, names), "")
