"""Opens the requests of a batch: from its files if it has ended, from its plan and its result chunks while it runs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchyard import json_lines
from batchyard.errors import ArtifactMissing, NotFoundError
from batchyard.statuses import TERMINAL
from results.filter import Numbers
from results.rows import Rows, max_line_bytes, read_lines
from results.search import Raw
from results.storage import Storage, cached
from store import batches, files, segments
from store.formats import plan, scores
from store.formats import rows as rows_file
from store.formats import seconds as seconds_file
from store.formats.chunks import read as read_chunk
from store.records import Batch

_NO_REQUESTS = pa.Table.from_batches([], pa.schema([("line", pa.int64()), ("custom_id", pa.string())]))
_NO_ANSWERS = pa.Table.from_batches([], pa.schema([("line", pa.int64()), ("ok", pa.bool_()), ("code", pa.string())]))


@contextmanager
def open_rows(storage: Storage, batch: Batch) -> Iterator[Rows]:
    """Open a planned batch. Raises NotFoundError without its input; UnavailableError for the store, or a loss there."""
    with ExitStack() as stack:
        if batch.status in TERMINAL and (batch.rows_sha256 or batch.output_file_id or batch.error_file_id):
            rows = MergedRows(storage, batch, stack)
            try:
                _add_grades(rows, storage, batch)
            except ArtifactMissing:
                rows.missing = rows.missing or "The scores of this batch are missing in the artifact store."
            yield rows
        else:
            yield UnmergedRows(storage, batch, stack)


def _add_grades(rows: Rows, storage: Storage, batch: Batch) -> None:
    """Add the columns `task` and `correct` if the batch has scores; they are null where nothing was expected."""
    if not any(entry["step"] == "score" for entry in batch.post_process):
        return
    with storage.database.read() as session:
        file = batches.find_artifact(session, batch.project_id, batch.id, scores.NAME)
    if file is None:
        return
    artifacts, sha256 = storage.artifacts, file.sha256
    graded = cached((artifacts, scores.NAME, sha256), lambda: scores.read(artifacts, sha256))
    if graded.num_rows:
        places = pc.index_in(rows.table["line"], value_set=graded["line"].combine_chunks())
        for name in ("task", "correct"):
            rows.table = rows.table.append_column(name, graded[name].take(places))


class MergedRows(Rows):
    """The requests of a batch with an output and an error file, in input order."""

    def __init__(self, storage: Storage, batch: Batch, stack: ExitStack) -> None:
        self._max_line_bytes = max_line_bytes(storage)
        with storage.database.read() as session:
            ids = {"input": batch.input_file_id, "output": batch.output_file_id, "error": batch.error_file_id}
            records = {name: files.find(session, batch.project_id, id_) if id_ else None for name, id_ in ids.items()}
        gone = [name for name, file in records.items() if file is None and ids[name]]
        if gone:
            self.missing = f"The {' and the '.join(gone)} file of this batch was deleted or has expired."
        shas = {name: file.sha256 for name, file in records.items() if file is not None}
        artifacts = storage.artifacts
        self._files: dict[str, IO[bytes]] = {}
        for name, sha256 in (shas | ({"seconds": batch.seconds_sha256} if batch.seconds_sha256 else {})).items():
            try:
                self._files[name] = stack.enter_context(artifacts.open(sha256))
            except ArtifactMissing:
                self.missing = (
                    f"The {name} file of this batch is missing in the artifact store: run the batch again, or have the "
                    "store restored from a backup."
                )
        if (rows_sha256 := batch.rows_sha256) is None:
            raise NotFoundError(self.missing or "The input of this batch was lost when it ended.")
        self.table = cached((artifacts, rows_sha256), lambda: rows_file.read(artifacts, rows_sha256))

    def raw(self, positions: Numbers) -> list[Raw]:
        rows = self.table.select(["line", "ok", "source", "answer"]).take(pa.array(positions))
        requests = read_lines(self._files.get("input"), rows["source"].to_numpy(), self._max_line_bytes)
        oks = pc.fill_null(rows["ok"], False).to_numpy()
        places = pc.fill_null(rows["answer"], -1).to_numpy()
        answers = np.full(positions.size, b"", object)
        for ok, name in ((True, "output"), (False, "error")):
            members = (oks == ok) & (places >= 0)
            lines = read_lines(self._files.get(name), places[members], self._max_line_bytes)
            answers[members] = np.fromiter(lines, object, len(lines))
        seconds = [seconds_file.read(self._files.get("seconds"), line) for line in rows["line"].to_pylist()]
        return [Raw(*fields) for fields in zip(requests, answers.tolist(), seconds, strict=True)]


class UnmergedRows(Rows):
    """The requests of a batch that runs: those with an answer in the order in which these came, then the others."""

    def __init__(self, storage: Storage, batch: Batch, stack: ExitStack) -> None:
        self._artifacts, self._batch, self._stack = storage.artifacts, batch, stack
        self._max_line_bytes = max_line_bytes(storage)
        self._source: IO[bytes] | None = None
        with storage.database.read() as session:
            self._chunks = [sha256 for sha256, _ in segments.chunks(session, batch.id)]
            self._plans = segments.plans(session, batch.id)
        pieces = [self._planned(*place) for place in self._plans]
        requests = pa.concat_tables([_NO_REQUESTS, *pieces])
        self._segments = np.repeat(np.arange(len(pieces)), [piece.num_rows for piece in pieces])
        answered = pa.concat_tables([_NO_ANSWERS, *map(self._answered, self._chunks)])
        lines, places = requests["line"].to_numpy(), answered["line"].to_numpy()
        order = np.argsort(lines)
        mine = order[np.searchsorted(lines, places, sorter=order)] if lines.size else np.zeros(0, np.int64)
        waits = np.ones(lines.size, np.bool_)
        waits[mine] = False
        self._requests = np.concatenate([mine, order[waits[order]]])
        nulls = lines.size - places.size
        sizes = [self._answered(sha256).num_rows for sha256 in self._chunks]
        self._chunk_of = np.repeat(np.arange(len(sizes)), sizes)
        columns = {name: requests[name].take(pa.array(self._requests)) for name in ("line", "custom_id")}
        for name in ("ok", "code"):
            columns[name] = pa.chunked_array([*answered[name].chunks, pa.nulls(nulls, answered[name].type)])
        self.table = pa.table(columns)

    def _planned(self, plan_sha256: str, row_group: int) -> pa.Table:
        def read() -> pa.Table:
            return next(plan.requests(self._artifacts, [(plan_sha256, row_group)]))

        return cached((self._artifacts, plan_sha256, row_group), read)

    def _answered(self, sha256: str) -> pa.Table:
        def read() -> pa.Table:
            table = pa.concat_tables(read_chunk(self._artifacts, sha256, ["line", "ok"]))
            codes: list[str | None] = [None] * table.num_rows
            failed = np.flatnonzero(~table["ok"].to_numpy())
            if failed.size:
                answers = pa.concat_tables(read_chunk(self._artifacts, sha256, ["answer"])).take(pa.array(failed))
                for row, answer in zip(failed.tolist(), answers["answer"].to_pylist(), strict=True):
                    codes[row] = rows_file.code(json_lines.loads(answer))
            return table.append_column("code", pa.array(codes, pa.string()))

        return cached((self._artifacts, sha256), read)

    def raw(self, positions: Numbers) -> list[Raw]:
        requests = self._read_requests(positions)
        answers: dict[int, tuple[bytes, float | None]] = {}
        answered = positions[positions < self._chunk_of.size]
        for chunk in np.unique(self._chunk_of[answered]).tolist():
            members = answered[self._chunk_of[answered] == chunk]
            table = pa.concat_tables(read_chunk(self._artifacts, self._chunks[chunk], ["answer", "seconds"]))
            first = int(np.searchsorted(self._chunk_of, chunk))
            entries = table.take(pa.array(members - first)).to_pylist()
            for position, entry in zip(members.tolist(), entries, strict=True):
                answers[position] = (entry["answer"].encode(), entry["seconds"])
        return [
            Raw(request, *answers.get(position, (b"", None)))
            for position, request in zip(positions.tolist(), requests, strict=True)
        ]

    def _read_requests(self, positions: Numbers) -> list[bytes]:
        if not self._batch.input_sha256:
            return self._read_planned(self._requests[positions])
        sha256 = self._batch.input_sha256
        if self._source is None:
            self._source = self._stack.enter_context(self._artifacts.open(sha256))
        source = self._source
        starts = cached((self._artifacts, sha256), lambda: rows_file.starts(source))
        places = starts[self._lines[positions] - 1]
        order = np.argsort(places)
        lines = np.full(positions.size, b"", object)
        lines[order] = np.fromiter(read_lines(source, places[order], self._max_line_bytes), object, positions.size)
        return lines.tolist()

    def _read_planned(self, requests: Numbers) -> list[bytes]:
        """Return requests of a job's batch, which has no input yet, as lines of it with their body only."""
        bodies: dict[int, bytes] = {}
        for segment in np.unique(self._segments[requests]).tolist():
            members = requests[self._segments[requests] == segment]
            columns = ["line", "body", "same_as"]
            table = next(plan.requests(self._artifacts, [self._plans[segment]], columns))
            rows = plan.body_rows(table).take(pa.array(members - int(np.searchsorted(self._segments, segment))))
            for request, body in zip(members.tolist(), table["body"].take(rows).to_pylist(), strict=True):
                bodies[request] = b'{"body":%s}' % body.encode()
        return [bodies[request] for request in requests.tolist()]
