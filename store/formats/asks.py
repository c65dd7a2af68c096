"""Asks: a job's plan file. Row groups are segments; each request names its item.

Columns: those of a plan (store.formats.plan), whose lines count on from the batch's last segment, and
    position: int64, of the item in the items file.
    life, visit, sample, retry: int32, see batchyard.recipes.program.Request and its custom_id.
    ask: binary(16), BLAKE2b of the request; it tells whether a recipe that is run again asks the same.
    turn: int32, of the item, from 1.
"""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from store.artifacts import Artifacts, ArtifactWriter
from store.formats import parquet, plan

SCHEMA = pa.schema(
    [
        *plan.SCHEMA,
        ("position", pa.int64()),
        *((name, pa.int32()) for name in ("life", "visit", "sample", "retry")),
        ("ask", pa.binary(16)),
        ("turn", pa.int32()),
    ]
)


def write(file: ArtifactWriter, tables: Iterable[pa.Table]) -> None:
    """Write each table with the columns of SCHEMA as one row group."""
    options = {"use_dictionary": False, "write_statistics": ["position"], **parquet.WRITTEN}
    with pq.ParquetWriter(file, SCHEMA, **options) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=table.num_rows)


def read_item(artifacts: Artifacts, sha256: str, row_group: int, position: int) -> pa.Table:
    """Return the requests of one item in one segment, each duplicate with a body. Raises as `plan.segment`."""
    table = plan.segment(artifacts, sha256, row_group, SCHEMA.names)
    rows = table.filter(pc.equal(table["position"], position))
    leaders = pc.index_in(rows["same_as"], value_set=table["line"].combine_chunks())
    bodies = pc.if_else(pc.is_null(rows["same_as"]), rows["body"], table["body"].take(leaders))
    return rows.set_column(rows.schema.get_field_index("body"), "body", bodies)
