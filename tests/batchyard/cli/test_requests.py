"""Request files and options of the command line: what is read of a file, and what is refused before it is sent."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import click
import pytest

from batchyard.cli import requests
from batchyard.errors import ConfigurationError
from tests.support.stacks import a_chat

REQUEST = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}}


@pytest.mark.parametrize(
    ("name", "content", "options", "becomes"),
    [
        ("rows.csv", "text\nx\n", {}, True),
        ("rows.txt", "x\n", {}, True),
        ("in.jsonl", json.dumps(REQUEST), {}, False),
        ("in.jsonl", '\n\n"a prompt"\n', {}, True),
        ("in.jsonl", '{"prompt": "x"}\n', {}, True),
        ("in.jsonl", '{"text": "x"}\n', {}, False),
        ("in.jsonl", '{"text": "x"}\n', {"template": "{text}"}, True),
        ("in.jsonl", "", {}, False),
        ("in.jsonl", "{broken", {}, False),
    ],
)
def test_a_file_of_prompts_is_told_from_one_of_requests(
    name: str, content: str, options: dict[str, Any], becomes: bool, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(content)
    assert requests.becomes_requests(file, options) is becomes


def test_a_compressed_file_is_left_to_the_server(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(REQUEST).encode()))
    assert requests.becomes_requests(file, {"template": None})


def test_options_of_prompts_do_not_go_with_whole_requests(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps(REQUEST))
    with pytest.raises(click.UsageError, match=r"--max-tokens: .* holds whole requests"):
        requests.becomes_requests(file, {"template": None, "max_tokens": 3})


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        (
            "README.md",
            b"# Title\n",
            {},
            "README.md: its name tells no format, and its first line is no request; requests are JSON, one a line",
        ),
        ("README.md", b"# Title\n", {"model": "m"}, "its name tells no format"),
        ("photo.png", b"\x89PNG\r\n\x1a\n", {"model": "m"}, "its name tells no format"),
        ("in.jsonl", b"{broken", {"model": "m"}, "--model: .*in.jsonl does not begin with a JSON object"),
        ("in.jsonl", b"", {"model": "m"}, "--model: .*in.jsonl is empty"),
        ("in.jsonl", b'{"text": "x"}', {"model": "m"}, "has no field prompt; say with --template how to use text"),
    ],
)
def test_what_is_neither_requests_nor_prompts_is_not_called_requests(
    name: str, content: bytes, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(click.UsageError, match=message):
        requests.becomes_requests(tmp_path / name, options)


def test_the_first_line_says_the_endpoint(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    for content, endpoint in (
        ("\n" + json.dumps(REQUEST) + "\n", "/v1/embeddings"),
        (json.dumps(REQUEST | {"url": "/v1/elsewhere"}), "/v1/chat/completions"),
        ("no json", "/v1/chat/completions"),
        ("[]", "/v1/chat/completions"),
        ("", "/v1/chat/completions"),
    ):
        file.write_text(content)
        assert requests.endpoint_of(file) == endpoint


def test_a_form_has_texts_and_nothing_that_is_unset(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text\n")
    options = {"endpoint": "/v1/completions", "window": "1h", "post_process": ("score",), "on_invalid": None}
    form = requests.start_form(
        requests.batch_fields(options, file), {"model": "mini", "max_tokens": 3, "system": None, **options}
    )
    assert form == {
        "model": "mini",
        "endpoint": "/v1/completions",
        "completion_window": "1h",
        "post_process": '[{"step": "score"}]',
        "max_tokens": "3",
    }


def test_a_step_has_its_options_behind_a_colon() -> None:
    assert requests.steps(["score", "score:method=numeric,field=a=b"]) == [
        {"step": "score"},
        {"step": "score", "method": "numeric", "field": "a=b"},
    ]
    with pytest.raises(click.UsageError, match="--post-process method: write KEY=VALUE"):
        requests.steps(["score:method"])


@pytest.mark.parametrize("text", ["=value", "key", ""])
def test_a_pair_has_a_key_and_a_value(text: str) -> None:
    assert requests.pairs(["a=", "b=1=2"], "--metadata") == {"a": "", "b": "1=2"}
    with pytest.raises(click.UsageError, match="write KEY=VALUE"):
        requests.pairs([text], "--metadata")


def test_what_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    requests.check_writable(None, tmp_path / "new.jsonl")
    with pytest.raises(ConfigurationError, match="cannot be written; name a file in a folder that exists"):
        requests.check_writable(tmp_path / "nowhere" / "out.jsonl")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="name a folder that is yours"):
        requests.make_folder(tmp_path / "file" / "folder")


@pytest.mark.parametrize("value", ["24", "1y", "-1h", "0s"])
def test_a_window_is_a_duration(value: str) -> None:
    assert requests.Window().convert("90m", None, None) == "90m"
    with pytest.raises(click.BadParameter):
        requests.Window().convert(value, None, None)


@pytest.mark.parametrize("through", ["pipe", "stdin"])
def test_what_can_be_read_only_once_is_copied_for_the_time_of_the_command(through: str, tmp_path: Path) -> None:
    seen: list[Path] = []

    @click.command()
    @click.argument("file", type=requests.LocalPath(path_type=Path, exists=True, dir_okay=False))
    def command(file: Path) -> None:
        seen.append(file)
        assert [file.read_bytes() for _ in range(2)] == [b"one\ntwo\n"] * 2

    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n")
    os.close(writing)
    before = os.dup(0)
    try:
        if through == "stdin":
            os.dup2(reading, 0)
        command.main(["/dev/stdin" if through == "stdin" else f"/dev/fd/{reading}"], standalone_mode=False)
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(reading)
    (copy,) = seen
    assert not copy.exists()


def test_a_file_that_standard_input_is_redirected_from_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("one\n")
    context = click.Context(click.Command("run"))
    kind = requests.LocalPath(path_type=Path, exists=True, dir_okay=False)
    assert kind.convert(str(file), None, context) == file


def test_a_url_is_no_file() -> None:
    with pytest.raises(click.BadParameter, match="URLs are not taken"):
        requests.LocalPath().convert("https://host/in.jsonl", None, None)


def test_the_model_of_every_request_is_replaced_and_other_lines_stay(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    lines = [json.dumps(a_chat("a", "hello ü")), "", "no json", '{"body": 3}', json.dumps({"body": {}})]
    source.write_text("\n".join(lines) + "\n")
    requests.with_model(source, "mini", target)
    copied = target.read_text().splitlines()
    assert json.loads(copied[0]) == {**json.loads(lines[0]), "body": {**json.loads(lines[0])["body"], "model": "mini"}}
    assert copied[1:4] == lines[1:4]
    assert json.loads(copied[4]) == {"body": {"model": "mini"}}
