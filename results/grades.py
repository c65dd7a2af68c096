"""Grades: which requests of a scored batch were answered rightly, beside its rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from results.cache import cached
from results.storage import Storage
from store import batches
from store.formats import scores
from store.records import Batch


def scores_of(storage: Storage, batch: Batch) -> pa.Table | None:
    """Return the scores of a batch (store.formats.scores). None if none of its requests has one, or they were deleted.

    Raises:
        UnavailableError: the artifact store has lost them or cannot be reached.
    """
    if not any(entry["step"] == "score" for entry in batch.post_process):
        return None
    with storage.database.read() as session:
        file = batches.find_artifact(session, batch.project_id, batch.id, scores.NAME)
    if file is None:
        return None
    artifacts, sha256 = storage.artifacts, file.sha256
    graded = cached((artifacts, scores.NAME, sha256), lambda: scores.read(artifacts, sha256))
    return graded if graded.num_rows else None


def with_grades(rows: pa.Table, graded: pa.Table) -> pa.Table:
    """Return rows of a batch with the columns `task` and `correct`, null where a request has no expected answer."""
    places = pc.index_in(rows["line"], value_set=graded["line"].combine_chunks())
    for name in ("task", "correct"):
        rows = rows.append_column(name, graded[name].take(places))
    return rows
