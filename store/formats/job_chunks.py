"""Job chunks: the states of items, or outcomes of rewards, gates and replies, as an immutable Parquet artifact.

The newest row of a position says how its item has ended; or that it waits for a verdict (WAITING), its `result` being
what it waits for; or that it goes on (LIVE), after a verdict or since it was put back. An item that has done neither
has no row before its end. Texts named as JSON hold JSON; times are Unix seconds, and `ended_at` is null before an end.

Kinds of judgements: `score`, `check`, `verdict`, `peer`, `refused` for a request that no engine ran, `reused` for one
that an earlier job had answered; CALL, which is committed before a tool is called, with `key`, `tool` and `arguments`
of the call, and CALLED, in a later chunk or alone, with the same `key` and the outcome. Two are of an item, not of what
it wanted, and have index 0: HANGS, whose value has the `message`, for a life that ends in the step after that turn; and
RECIPE, with turn 0, for a life that begins, other than the first, or goes on with another file of the recipe than
before. Its value has the `recipe_sha256`, the `hint` of who has put the item back, and `restarts`, the lives since then
that began because the file has changed. The newest counts, so it has a time `at`, too: the content of a chunk that came
back would be no new chunk.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from store.artifacts import Artifacts
from store.formats import parquet

RESULT = pa.schema(
    [
        ("position", pa.int64()),
        ("number", pa.int64()),
        ("custom_id", pa.string()),
        ("state", pa.string()),
        ("life", pa.int32()),
        ("turns", pa.int32()),
        ("result", pa.string()),  # JSON
        ("error", pa.string()),  # JSON
        ("started_at", pa.float64()),
        ("ended_at", pa.float64()),
    ]
)
JUDGEMENT = pa.schema(
    [
        ("position", pa.int64()),
        ("life", pa.int32()),
        ("turn", pa.int32()),
        ("index", pa.int32()),
        ("kind", pa.string()),
        ("value", pa.string()),  # JSON
    ]
)
CALL, CALLED = "call", "called"
HANGS = "hangs"
RECIPE = "recipe"
WAITING, LIVE = "waiting_for_verdict", "live"
UNENDED = (WAITING, LIVE)


def write(artifacts: Artifacts, table: pa.Table) -> str:
    """Store a table of RESULT or JUDGEMENT. Return the SHA-256 of the artifact."""
    with artifacts.create() as file:
        pq.write_table(table, file, write_statistics=False, **parquet.WRITTEN)
    return file.sha256


def read(artifacts: Artifacts, sha256: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return these columns of a chunk, or all. Raises UnavailableError; BatchyardError if it is damaged."""
    with parquet.opened(artifacts, sha256, "job chunk") as file:
        return file.read(columns=None if columns is None else list(columns), use_threads=False)
