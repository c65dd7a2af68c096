"""`chat`: one question with its answer, and a conversation that Ctrl-C does not end."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from batchyard.cli.console import chat
from batchyard.errors import UnavailableError
from tests.support.rows import until
from tests.support.stacks import RunningStack


def test_a_question_is_answered_on_standard_output(terminal: Any) -> None:
    shown = terminal("chat", "-m", "echo", "three", "wagons")
    assert (shown.returncode, shown.stdout) == (0, "three wagons\n")
    assert shown.stderr == "batchyard: this answer is simulated\n"


def test_standard_input_comes_before_the_question(terminal: Any) -> None:
    assert terminal("chat", "-m", "echo", stdin="a text\n").stdout == "a text\n"
    shown = terminal("chat", "-m", "echo", "--json", "--system", "be brief", "shorten it", stdin="a text\n")
    answer = json.loads(shown.stdout)
    assert (answer["content"], answer["model"], answer["simulated"]) == ("a text\n\nshorten it", "echo", True)
    assert answer["usage"]["completion_tokens"] == 4
    assert 0 < answer["ttft_seconds"] <= answer["seconds"]
    assert shown.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-m", "missing", "hello"], 4, "'missing' is not supported here"),
        (["-m", "vectors", "hello"], 4, "does not serve /v1/chat/completions"),
        (["hello"], 2, "name one with --model: echo, "),
        (["-m", "echo"], 2, "there is no question"),
        (["-m", "echo", "hello", "--sampling", "[1]"], 2, "--sampling: no JSON object"),
        (["-m", "echo", "hello", "--sampling", '{"service_tier": "gold"}'], 4, "There is no service tier 'gold'"),
    ],
)
def test_what_cannot_be_answered_is_said_on_one_line(
    terminal: Any, arguments: list[str], code: int, message: str
) -> None:
    shown = terminal("chat", *arguments)
    assert shown.returncode == code and message in shown.stderr and shown.stderr.count("\n") == 1
    assert shown.stdout == ""


def test_an_error_after_half_an_answer_begins_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Server:
        def __init__(self, *pieces: str) -> None:
            self.pieces = pieces

        def stream(self, path: str, body: Any) -> Iterator[dict[str, Any]]:
            yield from ({"choices": [{"delta": {"content": piece}}]} for piece in self.pieces)
            raise UnavailableError("the engine ended")

    for pieces, shown in ((("half an", " answer"), "half an answer\n"), ((), "")):
        monkeypatch.setattr(chat, "connect", lambda _, pieces=pieces: Server(*pieces))
        result = CliRunner().invoke(chat.chat, ["-m", "mini", "hello"])
        assert (result.stdout, str(result.exception)) == (shown, "the engine ended")


class Conversation:
    """`batchyard chat` in a terminal of its own."""

    def __init__(self, stack: RunningStack, folder: Path, model: str) -> None:
        self._ours, theirs = pty.openpty()
        self._shown = ""
        command = [str(Path(sys.executable).parent / "batchyard"), "chat", "-m", model]
        environment = os.environ | {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key, "TERM": "dumb"}
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)

    def send(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def read_to(self, text: str) -> str:
        """Return what was shown since the last time, up to this text."""
        while text not in self._shown:
            assert select.select([self._ours], [], [], 180)[0], self._shown
            self._shown += os.read(self._ours, 4096).decode()
        shown, _, self._shown = self._shown.partition(text)
        return shown + text

    def interrupt(self) -> None:
        os.killpg(self.process.pid, 2)


def test_ctrl_c_stops_an_answer_and_not_the_chat(stack: RunningStack, tmp_path: Path) -> None:
    chat = Conversation(stack, tmp_path, "worded")
    try:
        chat.read_to("> ")
        for _ in range(2):
            chat.send(f"{'wagon ' * 15}\n")
            chat.read_to("\nwagon ")
            chat.interrupt()
            chat.read_to("stopped")
            chat.read_to("> ")
        until(lambda: psutil.Process(chat.process.pid).status() == psutil.STATUS_SLEEPING)  # it waits for a key
        chat.interrupt()
        chat.read_to("Ctrl-D ends the chat.")
        chat.send("/help\n")
        chat.read_to("/reset begins anew")
        chat.read_to("> ")
        chat.send("\x04")
        assert chat.process.wait(60) == 0
    finally:
        chat.process.kill()


def test_the_model_is_sent_what_was_said_before_until_a_reset(stack: RunningStack, tmp_path: Path) -> None:
    chat = Conversation(stack, tmp_path, "echo")
    try:
        chat.read_to("> ")
        chat.send("one two\n")
        chat.read_to("one two\r\none two\r\n")
        chat.read_to("> ")
        chat.send("/reset\n")
        chat.read_to("> ")
        chat.send("/exit\n")
        assert chat.process.wait(60) == 0
    finally:
        chat.process.kill()
