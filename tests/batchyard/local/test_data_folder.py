"""The folder of a local stack is held by one, keeps secrets for its owner, and says why it cannot be used."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from batchyard.errors import ConfigurationError
from batchyard.local import process
from batchyard.local.data_folder import DataFolder


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"data folder .*file/data: Not a directory; .*--data"):
        DataFolder(tmp_path / "file" / "data")


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 30, (1 << 30) - 4096, 4096))
    with pytest.raises(ConfigurationError, match=r"0 MiB free, 256 needed; make room"):
        DataFolder(tmp_path / "data")


def test_a_stranger_whose_pid_stands_in_an_old_pid_file_is_left_alone(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "BATCHYARD_DATA": str(folder.path)}) as stranger:
        (folder.run / "web.pid").write_text(str(stranger.pid))
        folder.hold()
        folder.release()
        assert stranger.poll() is None
        stranger.kill()


def test_what_an_earlier_stack_left_is_ended(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    with subprocess.Popen(["sleep", "60"], env={**os.environ, process.TAG: f"{folder.path}#web"}) as leftover:
        folder.hold()
        folder.release()
        assert leftover.poll() is not None


def test_a_folder_is_held_by_one_that_is_named_to_others(tmp_path: Path) -> None:
    first, second = DataFolder(tmp_path / "data"), DataFolder(tmp_path / "data")
    first.hold()
    with pytest.raises(ConfigurationError, match=rf"is held by batchyard up, pid {os.getpid()}, since .*--data"):
        second.hold()
    second.release()
    with pytest.raises(ConfigurationError):
        DataFolder(tmp_path / "data").hold()
    first.release()
    second.hold()
    second.release()


def test_who_holds_a_folder_finds_nothing_that_an_earlier_holder_left(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    (folder.ray / "session").mkdir(parents=True)
    left = [folder.run / "web.pid", folder.run / "redis.sock", folder.state_file]
    kept = folder.logs / "web.log"
    for file in (*left, kept):
        file.write_text("x")
    folder.hold()
    assert not any(file.exists() for file in left) and not folder.ray.exists()
    assert kept.exists()
    folder.release()


def test_a_secret_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    password = folder.flower_password()
    assert re.fullmatch(r"batchyard:[\w-]{32}", password)
    assert folder.flower_password() == password
    assert folder.secret("flower.auth", lambda: pytest.fail("it is there already")) == password
    assert (folder.path / "flower.auth").stat().st_mode & 0o777 == 0o600
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_a_secret_whose_making_failed_is_not_there_and_is_made_the_next_time(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")

    def fails() -> str:
        raise OSError("no database")

    with pytest.raises(OSError, match="no database"):
        folder.secret("admin.key", fails)
    assert not folder.admin_key_file.exists()
    assert folder.secret("admin.key", lambda: "key") == "key"


def test_folders_have_short_names_of_their_own(tmp_path: Path) -> None:
    first, second = DataFolder(tmp_path / "one"), DataFolder(tmp_path / "two")
    assert first.name != second.name == DataFolder(tmp_path / "two").name
    assert re.fullmatch(r"by-[0-9a-f]{8}", first.name)


@pytest.mark.parametrize("name", ["x" * 100, "with space"])
def test_sockets_stand_in_a_folder_of_the_user_where_the_path_cannot_have_them(tmp_path: Path, name: str) -> None:
    folder = DataFolder(tmp_path / name)
    folder.hold()
    try:
        assert folder.short == Path("/tmp") / f"{folder.name}-{os.getuid()}"
        assert folder.short.stat().st_mode & 0o777 == 0o700
        folder.short.chmod(0o755)
        with pytest.raises(ConfigurationError, match="not a folder that only this user can enter; remove it"):
            folder.short  # noqa: B018
    finally:
        (Path("/tmp") / f"{folder.name}-{os.getuid()}").chmod(0o700)
        folder.release()
    assert not (Path("/tmp") / f"{folder.name}-{os.getuid()}").exists()


def test_terminal_commands_find_the_addresses_of_the_stack_that_runs(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.hold()
    folder.write_state("http://127.0.0.1:1", "http://127.0.0.1:2")
    state = json.loads(folder.state_file.read_text())
    assert (state["url"], state["flower"], state["pid"]) == ("http://127.0.0.1:1", "http://127.0.0.1:2", os.getpid())
    folder.release()
    assert not folder.state_file.exists()
