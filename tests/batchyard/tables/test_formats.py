"""A file's name says its format and compression; its content is read no further than it may be."""

from __future__ import annotations

import gzip
import io

import pytest

from batchyard.tables.formats import FORMATS, Kind, TableError, compression_of, decompressed, kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rows.csv", Kind("rows", "csv")),
        ("ROWS.CSV.GZ", Kind("ROWS", "csv", "gzip")),
        ("a.b.ndjson.zst", Kind("a.b", "jsonl", "zstd")),
        ("rows.parquet", Kind("rows", "parquet")),
        ("rows.parquet.gz", None),
        ("rows.gz", None),
        ("rows.xlsx", None),
        ("csv", None),
    ],
)
def test_the_name_says_what_a_file_holds(name: str, kind: Kind | None) -> None:
    assert kind_of(name) == kind


def test_every_suffix_has_a_kind_with_and_without_compression() -> None:
    for suffix, format_ in FORMATS.items():
        assert kind_of(f"x{suffix}") == Kind("x", format_)
        assert (kind_of(f"x{suffix}.gz") is None) == (format_ == "parquet")


def test_content_without_a_compression_is_the_file_itself() -> None:
    file = io.BytesIO(b"a,b\n")
    assert decompressed(file, compression_of("x.csv")) is file


def test_a_bomb_is_refused_before_it_is_read_whole() -> None:
    bomb = io.BytesIO(gzip.compress(b"0" * 10_000_000))
    with pytest.raises(TableError) as refusal:
        decompressed(bomb, "gzip", max_bytes=1_000_000).read()
    assert refusal.value.code == "file_too_large"
    assert decompressed(io.BytesIO(gzip.compress(b"0" * 10)), "gzip", max_bytes=10).read() == b"0" * 10


@pytest.mark.parametrize("content", [b"plain text", gzip.compress(b"0" * 100_000)[:-20]])
def test_content_that_is_not_so_compressed_is_said(content: bytes) -> None:
    with pytest.raises(TableError, match="cannot be decompressed"):
        decompressed(io.BytesIO(content), "gzip").read()
