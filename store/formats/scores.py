"""Scores: an artifact of a batch that says which requests were answered rightly, as lines of JSON.

Each line is about a request that has an expected answer, in input order:
    line: physical line number in the input, from 1.
    custom_id: of the request.
    task: the group in which it counts.
    correct: true or false.
    expected, answer: texts. `answer` is null if there is none, and `error` says why it is wrong then.
"""

import itertools

import pyarrow as pa

from batchyard import json_lines
from store.artifacts import Artifacts

NAME = "scores.jsonl"
PIECE = 500
SCHEMA = pa.schema([("line", pa.int64()), ("task", pa.string()), ("correct", pa.bool_())])


def read(artifacts: Artifacts, sha256: str) -> pa.Table:
    """Return the columns of SCHEMA, which take about 20 bytes a row. Raises UnavailableError."""
    pieces = [pa.Table.from_batches([], SCHEMA)]
    with artifacts.open(sha256) as file:
        while lines := list(itertools.islice(file, PIECE)):
            entries = [json_lines.loads(raw) for raw in lines]
            columns = [[entry[name] for entry in entries] for name in SCHEMA.names]
            pieces.append(pa.Table.from_arrays(list(map(pa.array, columns, SCHEMA.types)), schema=SCHEMA))
    return pa.concat_tables(pieces)
