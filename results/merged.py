"""The requests of a batch that has ended, from its files."""

from __future__ import annotations

from contextlib import ExitStack
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchyard.errors import ArtifactMissing, NotFoundError
from results.cache import cached
from results.filter import Numbers
from results.line_reader import max_line_bytes, read_lines
from results.rows import Rows
from results.search import Raw
from results.storage import Storage
from store import files
from store.formats import rows as rows_file
from store.formats import seconds as seconds_file
from store.records import Batch


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
        opened_files: dict[str, IO[bytes]] = {}
        for name, sha256 in (shas | ({"seconds": batch.seconds_sha256} if batch.seconds_sha256 else {})).items():
            try:
                opened_files[name] = stack.enter_context(artifacts.open(sha256))
            except ArtifactMissing:
                self.missing = (
                    f"The {name} file of this batch is missing in the artifact store: run the batch again, or have the "
                    "store restored from a backup."
                )
        self._source, self._output, self._errors, self._seconds = (
            opened_files.get(name) for name in ("input", "output", "error", "seconds")
        )
        if (rows_sha256 := batch.rows_sha256) is None:
            raise NotFoundError(self.missing or "The input of this batch was lost when it ended.")
        self.table = cached((artifacts, rows_sha256), lambda: rows_file.read(artifacts, rows_sha256))

    def raw(self, positions: Numbers) -> list[Raw]:
        rows = self.table.select(["line", "ok", "source", "answer"]).take(pa.array(positions))
        requests = read_lines(self._source, rows["source"].to_numpy(), self._max_line_bytes)
        oks = pc.fill_null(rows["ok"], False).to_numpy()
        places = pc.fill_null(rows["answer"], -1).to_numpy()
        answers = np.full(positions.size, b"", object)
        for ok, file in ((True, self._output), (False, self._errors)):
            members = (oks == ok) & (places >= 0)
            answers[members] = np.fromiter(
                read_lines(file, places[members], self._max_line_bytes), object, int(members.sum())
            )
        seconds = [seconds_file.read(self._seconds, line) for line in rows["line"].to_pylist()]
        return [Raw(*fields) for fields in zip(requests, answers.tolist(), seconds, strict=True)]
