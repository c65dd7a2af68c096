"""What a client sends becomes a file of whole requests, or is refused with the parameter that is wrong."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from batchyard.errors import RequestError, TooLargeError
from batchyard.request_lines.lines import REFUSED
from batchyard.tables.template import Template
from store.artifacts import ArtifactWriter
from tasks.context import AppContext
from tasks.intake import estimate, inputs, prompts
from tasks.intake.inputs import InputOptions
from tests.support.stacks import a_chat

OPTIONS = InputOptions(
    endpoint="/v1/chat/completions",
    model="echo",
    system=None,
    template=None,
    null_values=(),
    parameters={"temperature": 0.5},
    sampling={"min_p": 0.1},
    post_process=[],
    skip_invalid=False,
    explicit={"model"},
)


def upload(context: AppContext, content: bytes) -> ArtifactWriter:
    with context.artifacts.create() as writer:
        writer.write(content)
    return writer


def requests(context: AppContext, writer: ArtifactWriter) -> list[dict[str, Any]]:
    return [json.loads(line) for line in context.artifacts.read(writer.sha256).splitlines()]


def test_each_row_of_a_table_is_a_request_with_the_parameters_of_all(context: AppContext) -> None:
    table = upload(context, b"word\ncat\ndog\n")
    stored = inputs.of_file(context, replace(OPTIONS, template=Template("Say {word}")), table, "words.csv")
    bodies = [request["body"] for request in requests(context, stored)]
    assert [body["messages"][0]["content"] for body in bodies] == ["Say cat", "Say dog"]
    assert all(body["temperature"] == 0.5 and body["min_p"] == 0.1 for body in bodies)


def test_whole_requests_stay_as_they_are_and_are_decompressed(context: AppContext) -> None:
    lines = json.dumps(a_chat("first", "hello")).encode() + b"\n"
    plain, packed = upload(context, lines), upload(context, gzip.compress(lines))
    options = replace(OPTIONS, explicit=frozenset())
    assert inputs.of_file(context, options, plain, "in.jsonl") is plain
    assert context.artifacts.read(inputs.of_file(context, options, packed, "in.jsonl.gz").sha256) == lines


def test_whole_requests_take_none_of_the_options_of_prompts(context: AppContext) -> None:
    lines = upload(context, json.dumps(a_chat("first", "hello")).encode() + b"\n")
    with pytest.raises(RequestError, match="holds whole requests") as refusal:
        inputs.of_file(context, replace(OPTIONS, explicit={"template", "model"}), lines, "in.jsonl")
    assert refusal.value.param == "model"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": None}, "model"),
        ({"model": "nobody"}, "model"),
        ({"sampling": {"temperature": 1}}, "temperature"),
        ({"parameters": {"temperature": "hot"}}, "temperature"),
    ],
)
def test_an_option_that_spoils_every_request_is_refused_by_its_name(
    context: AppContext, changes: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError) as refusal:
        inputs.of_prompts(context, replace(OPTIONS, **changes), prompts.of_list(["hello"]))
    assert refusal.value.param == param


def test_a_sample_says_what_all_requests_of_a_file_ask_for(
    context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b"".join(json.dumps(a_chat(str(number), "hello")).encode() + b"\n" for number in range(10))
    stored = upload(context, lines + b"\n")
    whole = estimate.of_file(context, OPTIONS.endpoint, stored.sha256)
    monkeypatch.setattr(estimate, "SAMPLE", 2)
    assert estimate.of_file(context, OPTIONS.endpoint, stored.sha256) == whole
    assert (whole[0], whole[1]["echo"].requests) == (10, 10)


def test_a_request_or_a_file_that_is_too_long_is_not_stored(context: AppContext) -> None:
    """Instructions make a line longer than the row that it came from."""
    limits = context.settings.model_copy(update={"max_line_bytes": 300, "max_file_bytes": 1000})
    limited, options = replace(context, settings=limits), replace(OPTIONS, system="s" * 60)

    def write(*texts: str, skip: bool = False) -> list[dict[str, Any]]:
        given = prompts.of_list(list(texts))
        return requests(context, inputs.of_prompts(limited, replace(options, skip_invalid=skip), given))

    with pytest.raises(RequestError) as long:
        write("a", "b" * 200)
    assert long.value.code == "line_too_long"
    assert [line.get(REFUSED, {}).get("code") for line in write("a", "b" * 200, skip=True)] == [None, "line_too_long"]
    with pytest.raises(TooLargeError):
        write(*"abcdef")
