"""A file appears whole or not at all; what is no plain file is written through."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from batchyard.client.output_files import written
from tests.support.stacks import ROOT


def write(file: Path, content: bytes = b"new\n") -> None:
    with written(file) as part:
        part.write_bytes(content)


def test_a_file_keeps_its_mode_and_is_untouched_by_what_fails(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    write(file, b"old\n")
    file.chmod(0o640)
    with pytest.raises(ZeroDivisionError), written(file) as part:
        part.write_bytes(b"half")
        raise ZeroDivisionError
    assert file.read_bytes() == b"old\n"
    write(file)
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"new\n", 0o640)
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_target_gets_the_content(exists: bool, tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    target, link = tmp_path / "big/real.jsonl", tmp_path / "link.jsonl"
    if exists:
        target.write_text("old")
    link.symlink_to("big/real.jsonl")
    write(link)
    assert (link.is_symlink(), target.read_bytes()) == (True, b"new\n")


def test_a_pipe_stays_one_and_its_reader_gets_the_lines(tmp_path: Path) -> None:
    pipe, lines = tmp_path / "p.jsonl", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: lines.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write(pipe)
    reader.join(60)
    assert (lines, pipe.is_fifo()) == ([b"new\n"], True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_device_stays_one(tmp_path: Path) -> None:
    device = tmp_path / "null.jsonl"
    os.mknod(device, 0o600 | 0o020000, os.makedev(1, 3))
    write(device)
    assert device.is_char_device()


@pytest.mark.parametrize("redirected", [True, False])
@pytest.mark.long
def test_standard_output_gets_the_lines_behind_what_is_there(redirected: bool, tmp_path: Path) -> None:
    link, log = tmp_path / "stdout.jsonl", tmp_path / "log"
    link.symlink_to("/proc/self/fd/1")
    log.write_text("before\n")
    code = "import pathlib, sys; from batchyard.client.output_files import written\n"
    code += "with written(pathlib.Path(sys.argv[1])) as part: part.write_bytes(b'new\\n')"
    with log.open("ab") as stream:
        ended = subprocess.run(
            [sys.executable, "-c", code, link], cwd=ROOT, stdout=stream if redirected else subprocess.PIPE, check=True
        )
    assert (log.read_bytes() if redirected else b"before\n" + ended.stdout) == b"before\nnew\n"
    assert link.is_symlink()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may create files anywhere")
def test_a_file_in_a_folder_where_nothing_can_be_created_is_written_through(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text("old")
    tmp_path.chmod(0o500)
    write(file)
    assert file.read_bytes() == b"new\n"
