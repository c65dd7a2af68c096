"""The journal of a job: its requests, rewards, gates and replies as Parquet rows.

Columns: number (int64, of the item), custom_id (string), life, turn (int32), kind (string: `request`, that of a
judgement, see store.formats.job_chunks, or `resolve` or `requeue`), stage (string), visit, sample, retry (int32), ask
(binary of 16: what an equal request equals), model (string), seed (int64), ok (bool), text, finish_reason, error,
message, extra (strings; extra is JSON), value (string, JSON of the outcome), input_tokens, cached_tokens, output_tokens
(int64), seconds (float32). Rows are sorted by number, life and turn; requests of a turn come first.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from batchyard import json_lines
from batchyard.recipes import Answer
from batchyard.recipes.program import Request
from jobs.stage_records import StageRecords, answers
from recipes.answers import answer_of
from store.artifacts import Artifacts, ArtifactWriter
from store.formats import job_chunks, parquet, plan
from store.formats.spill import Spill
from store.records import JobReply

NAME = "journal.parquet"
_TEXTS = ("text", "finish_reason", "error", "message", "extra", "value")
SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("custom_id", pa.string()),
        *((name, pa.int32()) for name in ("life", "turn")),
        *((name, pa.string()) for name in ("kind", "stage")),
        *((name, pa.int32()) for name in ("visit", "sample", "retry")),
        ("ask", pa.binary(16)),
        ("model", pa.string()),
        ("seed", pa.int64()),
        ("ok", pa.bool_()),
        *((name, pa.string()) for name in _TEXTS),
        *((name, pa.int64()) for name in ("input_tokens", "cached_tokens", "output_tokens")),
        ("seconds", pa.float32()),
    ]
)
GROUP_ROWS = 4096
_ORDER = ("number", "life", "turn", "kind", "stage", "visit", "sample", "retry")
"""What rows are sorted by. Kind 0 is a request, 1 a judgement, 2 a reply."""
CACHED_GROUPS = 4
_MEASURED = ("input_tokens", "cached_tokens", "output_tokens", "seconds")
_PLAN = ["line", "custom_id", "body", "same_as", "position", "life", "visit", "sample", "retry", "ask", "turn"]
Numbers = npt.NDArray[np.int64]


def write(
    file: ArtifactWriter,
    artifacts: Artifacts,
    numbers: Numbers,
    stages: Sequence[StageRecords],
    judgements: Sequence[str],
    item_replies: Sequence[JobReply] = (),
) -> int:
    """Write the journal, with `numbers` of each item by position, and return its rows, which wait on disk."""
    with Spill([*_ORDER, "row"]) as rows:
        for order, stage in enumerate(stages):
            for row in _requests(artifacts, stage, numbers):
                place = (order, row["visit"], row["sample"], row["retry"])
                rows.add((row["number"], row["life"], row["turn"], 0, *place, json_lines.dumps(row)))
        for sha256 in judgements:
            for row in job_chunks.read(artifacts, sha256).to_pylist():
                number = int(numbers[row["position"]])
                values = {name: row[name] for name in ("life", "turn", "kind", "value")}
                text = json_lines.dumps(values | {"number": number, "sample": row["index"]})
                rows.add((number, row["life"], row["turn"], 1, 0, 0, row["index"], 0, text))
        for reply in item_replies:
            if reply.kind != "verdict":  # that is a judgement, too
                number = int(numbers[reply.position])
                value = json_lines.dumps(reply.body).decode()
                row = {"number": number, "life": reply.life, "turn": reply.turn, "kind": reply.kind, "value": value}
                rows.add((number, reply.life, reply.turn, 2, 0, 0, 0, 0, json_lines.dumps(row)))
        count = 0
        with pq.ParquetWriter(file, SCHEMA, use_dictionary=False, **parquet.WRITTEN) as writer:
            texts = rows.select("row", f"ORDER BY {', '.join(_ORDER)}, rowid")
            while group := [_row(text) for (text,) in islice(texts, GROUP_ROWS)]:
                writer.write_table(pa.Table.from_pylist(group, SCHEMA), row_group_size=GROUP_ROWS)
                count += len(group)
        return count


def _row(text: bytes) -> dict[str, Any]:
    row: dict[str, Any] = json_lines.loads(text)
    if row.get("ask"):
        row["ask"] = bytes.fromhex(row["ask"])
    return row


def _requests(artifacts: Artifacts, stage: StageRecords, numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Yield a row for each request of a stage, in plan order."""
    with Spill(["line INTEGER PRIMARY KEY", "answer", "seconds"], replace=True) as spilled:
        for answer in answers(artifacts, [sha256 for _, sha256 in stage.chunks]):
            spilled.add(answer)
        for plan_sha256, row_group in stage.plans:
            table = plan.segment(artifacts, plan_sha256, row_group, _PLAN)
            lines = table["line"].to_pylist()
            bodies = dict(zip(lines, table["body"].to_pylist(), strict=True))
            of_group = spilled.select("*", "WHERE line BETWEEN ? AND ?", (min(lines), max(lines)))
            texts = {line: (answer, seconds) for line, answer, seconds in of_group}
            for row in table.to_pylist():
                row["body"] = json_lines.loads(row["body"] or bodies[row["same_as"]])
                row["number"] = int(numbers[row["position"]])
                yield _request(stage.name, row, *texts.get(row["line"], (None, None)))


def _request(stage: str, row: Mapping[str, Any], answer_json: str | None, seconds: float | None) -> dict[str, Any]:
    body = row["body"]
    custom_id = row["custom_id"].rsplit("/", 1)[0]
    values: dict[str, Any] = {
        "custom_id": custom_id.removesuffix(f"#{row['life']}") if row["life"] > 1 else custom_id,
        "kind": "request",
        "stage": stage,
        **{name: row[name] for name in ("number", "life", "turn", "visit", "sample", "retry")},
        "ask": row["ask"].hex(),
        "model": body.get("model"),
        "seed": body.get("seed"),
    }
    if answer_json is None:
        return values
    request = Request(stage, "", row["visit"], row["sample"], str(body.get("model")), {}, {}, body.get("seed"))
    answer = answer_of(answer_json, seconds, request)
    error = answer.error or {}
    return values | {
        "ok": answer.ok,
        "text": answer.text if answer.ok else None,
        "finish_reason": answer.finish_reason,
        "error": error.get("code"),
        "message": error.get("message"),
        "extra": json_lines.dumps(dict(answer.extra)).decode() if answer.extra else None,
        **{name: getattr(answer, name) for name in _MEASURED},
    }


class Journal:
    """Answers of an earlier job, by place. Not for several threads."""

    def __init__(self, artifacts: Artifacts, sha256: str) -> None:
        """Raises UnavailableError, BatchyardError: the journal cannot be read."""
        self._artifacts = artifacts
        self._sha256 = sha256
        with parquet.opened(artifacts, sha256, "journal") as file:
            self._metadata = file.metadata
        column = SCHEMA.get_field_index("number")
        statistics = [
            self._metadata.row_group(group).column(column).statistics for group in range(self._metadata.num_row_groups)
        ]
        self._ranges = [(each.min, each.max) for each in statistics]
        self._group = lru_cache(CACHED_GROUPS)(self._read)

    def answer(self, number: int, stage: str, visit: int, sample: int, ask: bytes) -> Answer | None:
        """Return the answer to an equal request at this place, if any."""
        for group, (first, last) in enumerate(self._ranges):
            if first <= number <= last:
                row = self._group(group).get((number, stage, visit, sample))
                if row is not None and row["ask"] == ask and row["ok"] is not None:
                    return Answer(
                        ok=row["ok"],
                        text=row["text"] or "",
                        error=None if row["ok"] else {"code": row["error"], "message": row["message"]},
                        status_code=200 if row["ok"] else None,
                        **{name: row[name] for name in (*_MEASURED, "finish_reason", "seed", "model")},
                        extra=json_lines.loads(row["extra"]) if row["extra"] else {},
                    )
        return None

    def _read(self, group: int) -> dict[tuple[int, str, int, int], dict[str, Any]]:
        with parquet.opened(self._artifacts, self._sha256, "journal", self._metadata) as file:
            rows = file.read_row_group(group, use_threads=False).to_pylist()
        # Of several attempts at a request the last one counts: it comes last. What was reused may be reused again.
        return {
            (row["number"], row["stage"], row["visit"], row["sample"]): row for row in rows if row["kind"] == "request"
        }
