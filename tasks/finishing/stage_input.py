"""Stage input: the input file of a job's batch, whose requests have come segment by segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson
import pyarrow as pa

from batchyard import json_lines
from store.artifacts import Artifacts, ArtifactWriter
from store.formats import plan
from tasks.finishing import spool

NAME = "input.jsonl"
ROWS = 1000


def write(artifacts: Artifacts, plans: Sequence[tuple[str, int]], endpoint: str, file: ArtifactWriter) -> None:
    """Write the requests of a batch as a client would have uploaded them, by line.

    Args:
        plans: plan and row group of each segment.

    Raises:
        UnavailableError: the store cannot be reached, or the local disk is full.
    """
    with spool.opened() as lines:
        for table in requests(artifacts, plans):
            texts = [
                json_lines.line(
                    {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": orjson.Fragment(body)}
                ).rstrip()
                for custom_id, body in zip(table["custom_id"].to_pylist(), table["body"].to_pylist(), strict=True)
            ]
            lines.add(table["line"].to_numpy(), pa.array(texts, pa.string()))
        lines.write(file)


def requests(artifacts: Artifacts, plans: Sequence[tuple[str, int]]) -> Iterator[pa.Table]:
    """Yield line, custom_id and body of every request, ROWS at a time, duplicates with their body.

    Raises:
        UnavailableError: the store cannot be reached.
    """
    for table in plan.requests(artifacts, plans, ["line", "custom_id", "body", "same_as"]):
        body_rows = plan.body_rows(table)
        for start in range(0, table.num_rows, ROWS):
            part = table.select(["line", "custom_id"]).slice(start, ROWS)
            yield part.append_column("body", table["body"].take(body_rows.slice(start, ROWS)))
