"""Whatever a file or a cell holds: rows, a refusal of a row, or one of the file, and never another exception."""

from __future__ import annotations

import datetime
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.errors import RequestError
from batchyard.tables import cells, images, reading
from batchyard.tables.cells import CellError
from batchyard.tables.formats import DELIMITERS, Format, TableError
from batchyard.tables.template import Template
from tasks.intake import prompts

TEXT_FORMATS: list[Format] = ["txt", "prompts", "csv", "tsv", "jsonl"]
PIECES = st.sampled_from(
    [
        b"a",
        b",",
        b"\t",
        b'"',
        b"\n",
        b"\r",
        b"\r\n",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b"---",
        b"{}",
        b'{"a": 1}',
        b'"x"',
    ]
)
CONTENTS = st.one_of(st.binary(max_size=60), st.lists(PIECES, max_size=20).map(b"".join))
SCALARS = st.one_of(
    *(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(st.characters(), max_size=5),
        st.binary(max_size=9),
    ),
    *(
        st.decimals(),
        st.dates(),
        st.datetimes(),
        st.timedeltas(),
        st.uuids(),
        st.complex_numbers(),
        st.just("huge").map(lambda _: 10**5000),
    ),
    *(st.builds(object), st.just(pa.scalar(3)), st.just({1, 2}), st.just(cells.Unreadable("cannot be read"))),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=5,
)


@given(content=CONTENTS, kind=st.sampled_from(TEXT_FORMATS))
def test_any_bytes_are_rows_in_order_or_refused(content: bytes, kind: Format) -> None:
    lines = []
    try:
        for row in reading.rows(io.BytesIO(content), kind, max_line_bytes=100):
            lines.append(row.line)
            assert (row.problem is None) or not row.values
            assert 1 <= row.line <= content.count(b"\n") + content.count(b"\r") + 1
    except TableError as error:
        assert error.message and kind in DELIMITERS
    assert lines == sorted(lines)
    if kind == "jsonl":
        assert len(lines) == sum(bool(line.strip()) for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"))


@given(content=CONTENTS, kind=st.sampled_from(TEXT_FORMATS), template=st.sampled_from([None, "{a}", "{a:image}", "{"]))
def test_any_file_becomes_prompts_or_refusals_that_name_the_line(
    content: bytes, kind: Format, template: str | None
) -> None:
    try:
        for prompt in prompts.of_file(io.BytesIO(content), kind, template and prompts.template_of(template)):
            if prompt.refusal is not None:
                assert prompt.refusal.message.startswith(f"Line {prompt.number}")
            else:
                json.dumps(prompt.content, ensure_ascii=False).encode()
    except RequestError as error:
        assert error.param in ("file", "template")


@given(value=VALUES)
def test_any_cell_is_a_text_or_refused_with_its_column(value: Any) -> None:
    for template in ("{cell}", "{cell:image}"):
        try:
            json.dumps(Template(template).fill({"cell": value}), ensure_ascii=False).encode()
        except CellError as error:
            assert str(error).startswith("column cell ")


@given(value=VALUES, content=st.text(max_size=3) | st.lists(VALUES, max_size=2))
def test_any_value_beside_messages_is_sent_or_refused_with_its_column(value: Any, content: Any) -> None:
    for column in ("images", "image", "audio"):
        try:
            images.attached([{"role": "user", "content": content}], {column: value})
            images.stored({"other": value}, ["images"])
        except CellError as error:
            assert str(error).startswith(f"column {column} ")


BROKEN = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"\xffa")]
)
FAR = pa.array([2**62, 0], pa.timestamp("ms"))


@pytest.mark.parametrize("column", [BROKEN, FAR], ids=["not UTF-8", "a year beyond those of Python"])
def test_a_cell_of_arrow_that_is_no_value_of_python_refuses_its_row_alone(column: pa.Array) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"cell": column, "n": [0, 1]}), file)
    first, second = prompts.of_file(io.BytesIO(file.getvalue()), "parquet", Template("{cell}"))
    assert first.refusal is not None and first.refusal.message.startswith("Row 1: column cell cannot be read: ")
    assert second.content in ("a", datetime.datetime(1970, 1, 1).isoformat())
    unused = list(prompts.of_file(io.BytesIO(file.getvalue()), "parquet", Template("{n}")))
    assert [prompt.content for prompt in unused] == ["0", "1"]
    assert [isinstance(value, cells.Unreadable) for value in cells.of_arrow(column)] == [True, False]


def test_a_parquet_file_with_two_columns_of_one_name_is_refused() -> None:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["x", "x"]), file)
    with pytest.raises(TableError, match="Two columns have one name: x, x"):
        list(reading.rows(io.BytesIO(file.getvalue()), "parquet"))
