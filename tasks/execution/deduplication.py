"""Copies: requests that ask for the same as another of their segment, and get its answer without being run."""

from __future__ import annotations

from collections import defaultdict

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from batchyard import output_lines


class Duplicates:
    """The requests of a segment that are not run: each has the line of the one that is as `same_as`."""

    def __init__(self, rows: pa.Table) -> None:
        """`rows`: requests with the plan's columns, of which those that are left to be answered are looked at."""
        duplicates = rows.filter(pc.is_valid(rows["same_as"])).select(["same_as", "line", "custom_id"])
        self._of: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for leader, line, custom_id in zip(*(column.to_pylist() for column in duplicates.columns), strict=True):
            self._of[leader].append((line, custom_id))

    def join(self, answers: pa.Table, *, shared: bool = False) -> pa.Table:
        """The answers and, for each, those of its copies; a column `shared` (bool) tells them apart.

        A copy's response says in `batchyard.same_as` whose it is, by custom_id; its usage is what it would have had.

        Args:
            shared: no engine computed these answers either.
        """
        tables = [answers.append_column("shared", pa.array([shared] * answers.num_rows, pa.bool_()))]
        for row, leader in enumerate(answers["line"].to_pylist()):
            duplicates = self._of.pop(leader, None)
            if duplicates:
                tables.append(_copied(answers.slice(row, 1), duplicates))
        return pa.concat_tables(tables)


def _copied(answer: pa.Table, duplicates: list[tuple[int, str]]) -> pa.Table:
    said = orjson.loads(answer["answer"][0].as_py())
    response, body = said["response"] or {}, None
    if response:
        ours = response["body"].get("batchyard", {}) | {"same_as": said["custom_id"]}
        body = orjson.dumps(response["body"] | {"batchyard": ours})
    columns = {
        name: pa.repeat(answer[name][0], len(duplicates))
        for name in answer.column_names
        if name not in ("line", "answer")
    }
    columns["line"] = pa.array([line for line, _ in duplicates], pa.int64())
    columns["answer"] = pa.array(
        [output_lines.line(custom_id, response.get("status_code"), body, said["error"]) for _, custom_id in duplicates]
    )
    columns["shared"] = pa.array([True] * len(duplicates))
    return pa.table({name: columns[name] for name in [*answer.column_names, "shared"]})
