"""The answers of a batch and of its retries are one result, in the order of the input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from batchyard.client import retries
from batchyard.endpoints import output_lines


class Server:
    """A server with these files, by id."""

    def __init__(self, **files: list[str]) -> None:
        self._files = files

    def find_file(self, file_id: str) -> dict[str, Any] | None:
        return {"id": file_id} if file_id in self._files else None

    def lines(self, file_id: str) -> Iterator[bytes]:
        yield from (line.encode() for line in self._files[file_id])


def answered(custom_id: str) -> str:
    return output_lines.line(custom_id, 200, b"{}", None)


def requested(*custom_ids: str) -> list[str]:
    return [json.dumps({"custom_id": one}) for one in custom_ids]


def test_a_corrected_line_has_its_answer_in_its_place_and_one_with_a_new_name_stands_last(tmp_path: Path) -> None:
    refusal = {"code": "invalid_request", "message": "wrong", "param": None}
    wrong = [output_lines.invalid(number, name, refusal) for number, name in ((2, "b"), (3, "a"), (4, None))]
    server = Server(
        input=[*requested("a", "b", "a"), "no JSON", *requested("e")],
        output=[answered("a"), answered("e")],
        error=wrong,
        fixed=[answered("b"), answered("new")],
    )
    first = {"input_file_id": "input", "output_file_id": "output", "error_file_id": "error"}
    second = {"output_file_id": "fixed", "error_file_id": None}
    retries.write(server, [first, second], tmp_path / "out.jsonl", tmp_path / "bad.jsonl")  # type: ignore[arg-type]
    names = [json.loads(line)["custom_id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert names == ["a", "b", "e", "new"]
    assert [json.loads(line)["error"]["line"] for line in (tmp_path / "bad.jsonl").read_text().splitlines()] == [3, 4]
