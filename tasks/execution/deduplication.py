"""Deduplication: a request that is the same as another of its segment gets that one's answer without being run."""

from __future__ import annotations

from collections import defaultdict

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from batchyard import output_lines


class Duplicates:
    """The requests of a segment that are not run. Their `same_as` is the line of the request that is."""

    def __init__(self, rows: pa.Table) -> None:
        """`rows`: the segment's requests without an answer, with the plan's columns."""
        duplicates = rows.filter(pc.is_valid(rows["same_as"])).select(["same_as", "line", "custom_id"])
        self._of: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for leader, line, custom_id in zip(*(column.to_pylist() for column in duplicates.columns), strict=True):
            self._of[leader].append((line, custom_id))

    def join(self, answers: pa.Table, *, shared: bool = False) -> pa.Table:
        """Return the answers and those of their duplicates, with a column `shared` (bool) that is True for duplicates.

        A duplicate's response has the custom_id of the request that ran in `batchyard.same_as`. It has the same usage.

        Args:
            shared: value of `shared` for `answers`; True if no engine computed them either.
        """
        tables = [answers.append_column("shared", pa.array([shared] * answers.num_rows, pa.bool_()))]
        for row, leader in enumerate(answers["line"].to_pylist()):
            duplicates = self._of.pop(leader, None)
            if duplicates:
                tables.append(_copied(answers.slice(row, 1), duplicates))
        return pa.concat_tables(tables)


def _copied(answer: pa.Table, duplicates: list[tuple[int, str]]) -> pa.Table:
    original = orjson.loads(answer["answer"][0].as_py())
    response, body = original["response"] or {}, None
    if response:
        extension = response["body"].get("batchyard", {}) | {"same_as": original["custom_id"]}
        body = orjson.dumps(response["body"] | {"batchyard": extension})
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
    columns["shared"] = pa.array([True] * len(duplicates))
    return pa.table({name: columns[name] for name in [*answer.column_names, "shared"]})
