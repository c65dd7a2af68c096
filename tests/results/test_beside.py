"""The columns of a table stand beside the answers to its rows in downloads."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pyarrow.parquet as pq

from results import downloads
from results.rows import Entry
from results.search import Raw
from store.formats.results import ResultRow


def test_the_columns_of_a_table_stand_beside_its_answers() -> None:
    def rowed(line: int, row: dict[str, Any] | None) -> Any:
        body = {"choices": [{"message": {"content": f"label {line}"}}]}
        answer = {"response": {"status_code": 200, "body": body}, "error": None}
        request = {"custom_id": f"prompt-{line}", "body": {}} | ({} if row is None else {"row": row})
        entry = Entry(ResultRow.of(line, f"prompt-{line}", {}, answer, None), "succeeded", None)
        return entry, Raw(json.dumps(request).encode(), b"", None)

    made = [rowed(1, {"shop": "Ada", "text": "=good", "n": 2**70}), rowed(2, {"shop": None}), rowed(3, None)]
    (_, as_csv), (_, as_parquet) = (downloads.FORMATS[name] for name in ("csv", "parquet"))
    rows = list(csv.DictReader(io.StringIO(b"".join(as_csv(iter(made))).decode("utf-8-sig"))))
    assert list(rows[0])[:4] == ["shop", "row.text", "n", "line"], "a column with a name of ours keeps its cells"
    assert [rows[0][name] for name in ("shop", "row.text", "n", "text")] == ["Ada", "'=good", str(2**70), "label 1"]
    assert [row["shop"] for row in rows] == ["Ada", "", ""]
    table = pq.read_table(io.BytesIO(b"".join(as_parquet(iter(made)))))
    assert table["row.text"].to_pylist() == ["=good", None, None] and table["text"][0].as_py() == "label 1"
