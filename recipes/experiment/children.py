"""The children of an experiment, as a comparison reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ComparedChild:
    """A job or a batch of an experiment that has ended.

    Attributes:
        variant: its name in the experiment.
        repeat: 0 for the first. The repeats of a variant are pooled item by item.
        round: 0 for the first. The last round is compared; the others are shown.
        manifest: its `manifest.json`, {} if it has none. Of it are read, where they are: `recipe`, `recipe_sha256`,
            `input_sha256`, `items_sha256`, `work_sha256`, `simulated`, `batchyard`, `options`, `seed`, `models` (name
            to configuration, with `engine`), `request_counts`, `usage`, `created_at`, `started_at`, `ended_at` (in
            seconds since 1970).
        metrics: its `metrics.json`, {} if it has none.
        journal: its `journal.parquet`, None if it has none.
        results: its `results.jsonl` (keys `number`, `state`, `result`), None if it has none.
        status: its end: `completed`, `failed`, `expired` or `cancelled`. Only what has completed is compared.
        error: why it has not completed.
    """

    variant: str
    repeat: int
    round: int
    job_id: str
    config_sha256: str
    manifest: Mapping[str, Any]
    metrics: Mapping[str, Any]
    journal: Path | None
    results: Path | None
    status: str = "completed"
    error: str | None = None

    @property
    def key(self) -> str:
        """Its name in reports: `<variant>/<repeat>/<round>`."""
        return f"{self.variant}/{self.repeat}/{self.round}"
