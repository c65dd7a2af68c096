"""Opens the requests of a batch, whether it runs or has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from batchyard.errors import ArtifactMissing
from batchyard.statuses import TERMINAL
from results.grades import scores_of, with_grades
from results.merged import MergedRows
from results.rows import Rows
from results.storage import Storage
from results.unmerged import UnmergedRows
from store.records import Batch


@contextmanager
def open_rows(storage: Storage, batch: Batch) -> Iterator[Rows]:
    """Open the requests of a batch that is planned.

    Raises:
        NotFoundError: the batch has ended without its input.
        UnavailableError: the artifact store is away or has lost what is needed.
    """
    with ExitStack() as stack:
        if batch.status in TERMINAL and (batch.rows_sha256 or batch.output_file_id or batch.error_file_id):
            rows = MergedRows(storage, batch, stack)
            try:
                if (scores := scores_of(storage, batch)) is not None:
                    rows.table = with_grades(rows.table, scores)
            except ArtifactMissing:
                rows.missing = rows.missing or "The scores of this batch are missing in the artifact store."
            yield rows
        else:
            yield UnmergedRows(storage, batch, stack)
