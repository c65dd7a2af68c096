"""RemoteEndpoint files: which servers a folder names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.engines.openai.discovery import DiscoveredServer, Folder


def write(folder: Path, name: str = "a.json", **changes: Any) -> None:
    content = {"host": "node7", "port": 8000, "model": "mine", "started_at": 1000} | changes
    (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("host", "url"),
    [("node7.cluster", "http://node7.cluster:8000/v1"), ("fe80::1", "http://[fe80::1]:8000/v1")],
)
def test_a_file_names_a_server_by_its_address(tmp_path: Path, host: str, url: str) -> None:
    write(tmp_path, host=host)
    assert Folder(tmp_path, "mine").servers() == {DiscoveredServer(url, 1000.0)}


def test_a_time_without_a_zone_is_in_utc(tmp_path: Path) -> None:
    write(tmp_path, started_at="1970-01-01T01:00:00")
    write(tmp_path, "b.json", host="node8", started_at="1970-01-01T01:00:00+01:00")
    assert {server.started_at for server in Folder(tmp_path, "mine").servers()} == {3600.0, 0.0}


def test_files_of_other_models_and_other_files_name_no_server(tmp_path: Path) -> None:
    write(tmp_path, model="another")
    write(tmp_path, "b.json.tmp")
    assert Folder(tmp_path, "mine").servers() == frozenset()


def test_a_folder_that_is_not_there_yet_has_no_servers(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "later", "mine")
    assert folder.servers() == frozenset()
    (tmp_path / "later").mkdir()
    write(tmp_path / "later")
    assert len(folder.servers()) == 1


@pytest.mark.parametrize("changes", [{"host": "a/b"}, {"port": 0}, {"started_at": "soon"}])
def test_a_file_that_says_no_address_is_named_once_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]
) -> None:
    write(tmp_path, **changes)
    folder = Folder(tmp_path, "mine")
    assert folder.servers() == folder.servers() == frozenset()
    assert caplog.text.count("endpoint file ignored") == 1 and next(iter(changes)) in caplog.text


def test_a_server_that_starts_again_at_its_address_is_another_one(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "mine")
    write(tmp_path)
    (first,) = folder.servers()
    write(tmp_path, started_at=20_000)
    (second,) = folder.servers()
    assert (first.url, second.started_at) == (second.url, 20_000.0) and first != second
