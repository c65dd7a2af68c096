"""The rows of an evaluation: a table, or the folder of a data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchyard.client import tables
from batchyard.client.evaluations import data
from batchyard.errors import ConfigurationError

ROWS = [{"question": f"{number}?", "answer": str(number)} for number in range(5)]


def lines(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def read(path: Path, split: str | None, scratch: Path) -> list[dict[str, Any]]:
    return list(tables.rows_of(data.source_of(path, split, scratch)))


def test_a_table_is_taken_as_it_is(tmp_path: Path, scratch: Path) -> None:
    file = lines(tmp_path / "rows.jsonl")
    assert data.source_of(file, None, scratch) == file


@pytest.mark.parametrize("content", [json.dumps(ROWS), "\n".join(map(json.dumps, ROWS))])
def test_json_is_a_list_of_objects_or_an_object_a_line(tmp_path: Path, scratch: Path, content: str) -> None:
    (tmp_path / "rows.json").write_text(content)
    assert read(tmp_path / "rows.json", None, scratch) == ROWS


def test_a_folder_of_files_has_a_split_for_each_name(tmp_path: Path, scratch: Path) -> None:
    lines(tmp_path / "set/test.jsonl", ROWS[:2])
    lines(tmp_path / "set/train.jsonl", ROWS[2:])
    (tmp_path / "set/._test.jsonl").write_bytes(b"\0\5\26\7")  # of macOS, on other disks
    assert read(tmp_path / "set", None, scratch) == ROWS[:2], "test comes before train"
    assert read(tmp_path / "set", "train", scratch) == ROWS[2:]


def test_the_parts_of_a_split_are_joined_in_their_order(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "set/data").mkdir(parents=True)
    for part in (0, 1):
        rows = pa.Table.from_pylist(ROWS[3 * part : 3 * part + 3])
        pq.write_table(rows, tmp_path / f"set/data/test-{part:05}-of-00002.parquet")
    assert read(tmp_path / "set", None, scratch) == ROWS


@pytest.mark.parametrize("split", [None, "validation"])
def test_what_the_library_datasets_has_saved_is_read(tmp_path: Path, scratch: Path, split: str | None) -> None:
    import datasets

    whole = datasets.Dataset.from_list(ROWS)
    if split is None:
        whole.save_to_disk(tmp_path / "set", num_shards=2)
    else:
        datasets.DatasetDict({"train": whole.select([0]).flatten_indices(), "validation": whole}).save_to_disk(
            tmp_path / "set"
        )
    assert read(tmp_path / "set", split, scratch) == ROWS


@pytest.mark.parametrize(
    ("split", "complaint"),
    [("dev", "there is no split 'dev'; available: one, two"), (None, "`split` says which of one, two")],
)
def test_a_split_that_is_not_there_or_not_clear_is_named(
    tmp_path: Path, scratch: Path, split: str | None, complaint: str
) -> None:
    lines(tmp_path / "set/one.jsonl")
    lines(tmp_path / "set/two.jsonl")
    with pytest.raises(ConfigurationError) as refused:
        data.source_of(tmp_path / "set", split, scratch)
    assert complaint in refused.value.message


@pytest.mark.parametrize(
    ("name", "split", "complaint"),
    [
        ("rows.jsonl", "test", "a file has no split 'test'"),
        ("missing", None, "there is no such file or folder"),
        ("empty", None, "no file of .txt, .prompts"),
        ("rows.xlsx", None, "its name does not tell what it holds"),
    ],
)
def test_what_is_no_data_is_refused(
    tmp_path: Path, scratch: Path, name: str, split: str | None, complaint: str
) -> None:
    lines(tmp_path / "rows.jsonl")
    (tmp_path / "empty").mkdir()
    (tmp_path / "rows.xlsx").touch()
    with pytest.raises(ConfigurationError) as refused:
        data.source_of(tmp_path / name, split, scratch)
    assert complaint in refused.value.message


def test_examples_of_a_long_file_are_drawn_by_the_seed(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = lines(tmp_path / "train.jsonl", [{"n": number} for number in range(200)])
    monkeypatch.setattr(data, "MOST_EXAMPLES", 20)
    drawn = [[row["n"] for row in data.examples(file, None, scratch, seed)] for seed in (1, 1, 2)]
    assert len(set(drawn[0])) == 20 and drawn[0] == drawn[1] != drawn[2]
    assert max(drawn[0]) > 100, "not the first rows"
