"""Deduplication: of equal requests of a segment one runs, and the others get its answer."""

from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from batchyard import json_lines
from batchyard.endpoints import output_lines

COPIED_BYTES = 16 * 1024 * 1024
"""A table of answers is complete when it has copies of this size."""


class Duplicates:
    """A segment's requests that are not run; `same_as` is the line of the one that is."""

    def __init__(self, rows: pa.Table) -> None:
        """`rows`: the segment's requests without an answer, with the plan's columns."""
        duplicates = rows.filter(pc.is_valid(rows["same_as"])).select(["same_as", "line", "custom_id"])
        self._of: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for leader, line, custom_id in zip(*(column.to_pylist() for column in duplicates.columns), strict=True):
            self._of[leader].append((line, custom_id))

    def join(self, answers: pa.Table, *, shared: bool = False) -> Iterator[pa.Table]:
        """Yield the answers and those of their duplicates, with a column `shared` (bool) that is True for duplicates.

        An answer is in one table with its duplicates: if only that table is kept, no duplicate is left without it. A
        duplicate's response names the request that ran in `batchyard.same_as`, and has its usage and no `seconds`.
        `shared` is True if no engine computed the `answers` either.
        """
        marked = answers.append_column("shared", pa.array([shared] * answers.num_rows, pa.bool_()))
        begin, size, copies = 0, 0, list[pa.Table]()
        for row, leader in enumerate(answers["line"].to_pylist()):
            if duplicates := self._of.pop(leader, None):
                copies.append(_copied(answers.slice(row, 1), duplicates))
                size += copies[-1].nbytes
            if size >= COPIED_BYTES:
                yield pa.concat_tables([marked.slice(begin, row + 1 - begin), *copies])
                begin, size, copies = row + 1, 0, []
        yield pa.concat_tables([marked.slice(begin), *copies])


def _copied(answer: pa.Table, duplicates: list[tuple[int, str]]) -> pa.Table:
    original = json_lines.loads(answer["answer"][0].as_py())
    response, body = original["response"] or {}, None
    if response:
        extension = response["body"].get("batchyard", {}) | {"same_as": original["custom_id"]}
        body = json_lines.dumps(response["body"] | {"batchyard": extension})
    columns = {
        name: pa.repeat(answer[name][0], len(duplicates))
        for name in answer.column_names
        if name not in ("line", "answer")
    }
    columns["line"] = pa.array([line for line, _ in duplicates], pa.int64())
    columns["answer"] = pa.array(
        [
            output_lines.line(custom_id, response.get("status_code"), body, original["error"])
            for _, custom_id in duplicates
        ]
    )
    columns["seconds"] = pa.nulls(len(duplicates), pa.float64())  # no engine had them
    columns["shared"] = pa.array([True] * len(duplicates))
    return pa.table({name: columns[name] for name in [*answer.column_names, "shared"]})
