"""Step export: the results as files in a folder of the client's, each there whole or not at all."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import fsspec
import openai
import pyarrow.parquet as pq
import pytest

from batchyard.errors import UnavailableError
from store.artifacts import Artifacts
from store.intake.outputs import OutputFolder
from tasks.steps import registry
from tests.support.s3 import BUCKET, S3Server
from tests.support.stacks import RunningStack, a_chat
from tests.support.step_results import BatchResults, a_row


def exported(artifacts: Artifacts, folder: Path | str, rows: int, **options: Any) -> dict[str, Any]:
    results = BatchResults(artifacts, [a_row(number, f"answer {number}", None) for number in range(rows)])
    url = folder if isinstance(folder, str) else f"file://{folder}"
    outcome: dict[str, Any] = registry.run({"step": "export", "url": url, **options}, results)
    return outcome


def texts(file: Path) -> list[str]:
    if file.suffix == ".parquet":
        return [row["text"] for row in pq.read_table(file).to_pylist()]
    if file.suffix == ".csv":
        return [row["text"] for row in csv.DictReader(file.open())]
    return [json.loads(line)["text"] for line in file.read_text().splitlines()]


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_rows_stand_in_parts_and_success_comes_last_and_again_changes_no_byte(
    artifacts: Artifacts, tmp_path: Path, form: str
) -> None:
    outcome = exported(artifacts, tmp_path / "out", 25, format=form, partition=10)
    assert outcome == {"status": "completed", "summary": {"url": f"file://{tmp_path}/out", "files": 3, "rows": 25}}
    parts = sorted(tmp_path.glob("out/part-*"))
    assert [part.name for part in parts] == [f"part-{number:05d}.{form}" for number in range(3)]
    assert [text for part in parts for text in texts(part)] == [f"answer {number}" for number in range(25)]
    assert json.loads((tmp_path / "out/_SUCCESS").read_text()) == {"files": [part.name for part in parts], "rows": 25}
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    exported(artifacts, tmp_path / "out", 25, format=form, partition=10)
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_bucket_gets_the_same_files_as_a_folder(
    artifacts: Artifacts, tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    url = f"s3://{BUCKET}/out/{tmp_path.name}"
    for target in (tmp_path / "out", url, url):
        assert exported(artifacts, target, 25, format="jsonl", partition=10)["summary"]["files"] == 3
    bucket = fsspec.filesystem("s3", skip_instance_cache=True)
    contents = {path.rpartition("/")[2]: bucket.cat_file(path) for path in bucket.find(url)}
    assert contents == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}


def test_a_batch_without_rows_has_one_file_and_success(artifacts: Artifacts, tmp_path: Path) -> None:
    assert exported(artifacts, tmp_path, 0)["summary"]["files"] == 1


def test_a_folder_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="cannot be written"):
        OutputFolder(f"file://{tmp_path}/file/below").put(tmp_path / "file", "part")


def test_a_batch_exports_to_a_folder_that_the_operator_allows_and_to_no_other(stack: RunningStack) -> None:
    allowed = stack.environment["BATCHYARD_OUTPUT_PREFIXES"].split(",")[0]
    step = {"step": "export", "url": f"{allowed}{{name}}/{{id}}", "format": "jsonl"}
    requests = [a_chat(f"r{number}", f"text {number}") for number in range(5)]
    batch = stack.wait(stack.submit(requests, extra_body={"post_process": [step]}, metadata={"name": "my ../ batch"}))
    (entry,) = batch.batchyard["post_process"]
    assert entry["status"] == "completed", entry
    assert entry["summary"]["url"] == f"{allowed}my-..-batch/{batch.id}"
    folder = Path(allowed.removeprefix("file://")) / "my-..-batch" / batch.id
    assert texts(folder / "part-00000.jsonl") == [f"text {number}" for number in range(5)]
    for url in ("s3://elsewhere/", f"{allowed}../up", f"{allowed}a*", f"{allowed}x::y", "file:///tmp/out"):
        with pytest.raises(openai.PermissionDeniedError, match="cannot be written here"):
            stack.submit(requests, extra_body={"post_process": [step | {"url": url}]})
