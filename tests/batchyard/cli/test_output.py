"""What others wrote cannot command the terminal."""

from __future__ import annotations

from batchyard.cli import output


def test_what_others_wrote_cannot_command_the_terminal() -> None:
    assert output.lines_of(["name"], [["\x1b[31mred\x9b\u202e"]]) == "name\n\ufffd[31mred\ufffd\ufffd"
