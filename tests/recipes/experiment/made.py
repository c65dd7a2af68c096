"""Children of experiments, with files of their own."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.finishing.journal import SCHEMA
from recipes.experiment.values import ComparedChild, Measured, read

NUMBERS = itertools.count()


def child(
    folder: Path,
    variant: str,
    items: Sequence[Mapping[str, Any]] | None,
    requests: Sequence[Mapping[str, Any]] | None = None,
    repeat: int = 0,
    round: int = 0,
    **values: Any,
) -> ComparedChild:
    """Write a child's results (their `result`, `state` and `number` may be missing) and journal."""
    name = f"job_{next(NUMBERS):04d}"
    results, journal = None, None
    if items is not None:
        results = folder / f"{name}.jsonl"
        lines = [
            {"custom_id": f"item-{number}", "number": number, "state": "completed", "result": {}, "error": None, **item}
            for number, item in enumerate(items)
        ]
        results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if requests is not None:
        journal = folder / f"{name}.parquet"
        rows = [{"kind": "request", "ok": True, **request} for request in requests]
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), journal, row_group_size=4)
    known: dict[str, Any] = {
        "job_id": name,
        "config_sha256": name.encode().hex().ljust(64, "0"),
        "manifest": {"recipe": "debate", "input_sha256": "a" * 64},
        "metrics": {},
    }
    return ComparedChild(
        variant=variant, repeat=repeat, round=round, journal=journal, results=results, **known | values
    )


def scored(folder: Path, variant: str, scores: Sequence[float], **values: Any) -> ComparedChild:
    """Write a child whose items have a number `score` in their results."""
    return child(folder, variant, [{"result": {"text": "", "score": score}} for score in scores], **values)


def measured(own: ComparedChild) -> Measured:
    """Read a child's files."""
    return read(own, tempfile.TemporaryFile())
