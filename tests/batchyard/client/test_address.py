"""The address of the server: BATCHYARD_URL before a local stack, and an admin key goes to this machine only."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchyard.client import address
from batchyard.errors import ConfigurationError


@pytest.fixture(autouse=True)
def empty_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BATCHYARD_URL", "BATCHYARD_API_KEY", "BATCHYARD_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with an admin key."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "admin.key").write_text("admin\n")
    return folder


def test_without_settings_it_is_this_machine_with_the_admin_key(data: Path) -> None:
    assert address.address(data) == ("http://127.0.0.1:8000", "admin")


def test_an_admin_key_never_goes_to_another_machine(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_URL", "https://elsewhere/")
    with pytest.raises(ConfigurationError, match="no API key for https://elsewhere/: set BATCHYARD_API_KEY"):
        address.address(data)
    monkeypatch.setenv("BATCHYARD_API_KEY", "mine")
    assert address.address(data) == ("https://elsewhere", "mine")


def test_the_environment_goes_before_the_file_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("BATCHYARD_URL=http://localhost:1\nBATCHYARD_DATA=there\nBATCHYARD_API_KEY=k\n")
    assert address.address(Path("data")) == ("http://localhost:1", "k")
    assert address.data_folder(None) == Path("there") and address.data_folder(Path("here")) == Path("here")
    monkeypatch.setenv("BATCHYARD_URL", "http://localhost:2")
    assert address.configured_url() == "http://localhost:2"


def test_a_server_runs_where_one_is_named_or_a_stack_lives(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not address.server_runs(data)
    monkeypatch.setenv("BATCHYARD_URL", "http://localhost:1")
    assert address.server_runs(data)


def test_a_program_is_told_of_the_variable_that_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="name a local stack's folder with BATCHYARD_DATA"):
        address.address(tmp_path, "BATCHYARD_DATA")


@pytest.mark.parametrize("url", ["http://127.0.0.1:8010/v1", "http://127.0.0.1:8010/v1/"])
def test_an_address_may_end_as_that_of_openais_clients(url: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_URL", url)
    assert address.address(data) == ("http://127.0.0.1:8010", "admin")
