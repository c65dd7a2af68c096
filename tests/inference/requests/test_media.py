"""Media by URL: an engine fetches only from domains that its model allows, and a request with a URL has no twin."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.models import ModelSpec
from inference.requests import media
from inference.requests.ordering import fingerprint

DATA = "data:image/png;base64,iVBORw0KGgo="
OPEN = ModelSpec(name="m", engine="vllm", source="a/b", engine_args={"allowed_media_domains": ["Images.example.org"]})
CLOSED = ModelSpec(name="m", engine="vllm", source="a/b")


def chat(*parts: dict[str, Any] | str) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": content}]}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    "part",
    [
        image("http://169.254.169.254/latest/meta-data"),
        image("https://images.example.org/a.png"),
        image("HTTPS://Images.Example.org"),
        image(" http://localhost/"),
        image("file:///etc/passwd"),
        image("/etc/passwd"),
        {"type": "image_url", "image_url": "http://localhost/"},
        {"type": "audio_url", "audio_url": {"url": "http://localhost/"}},
        {"type": "video_url", "video_url": {"url": "http://localhost/"}},
        {"type": "input_image", "image_url": "http://localhost/"},
        {"type": "file", "file": {"file_url": "http://localhost/"}},
        {"type": "image", "image": ["http://localhost/"]},
        {"type": "text", "text": "a", "uuid": "1", "image_url": "http://localhost/"},
    ],
)
def test_nothing_is_fetched_unless_the_model_allows_its_domain(part: dict[str, Any]) -> None:
    answer = media.refusal(CLOSED, chat("what is this?", part))
    assert answer is not None
    assert (answer.status_code, answer.body and answer.body["error"]["param"]) == (400, "messages[0].content[1]")


@pytest.mark.parametrize(
    "part",
    [
        "see http://localhost/",
        image(DATA),
        image(DATA.replace("data", "DATA")),
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "refusal", "refusal": "not http://localhost/"},
    ],
)
def test_texts_and_media_in_the_request_are_always_allowed(part: dict[str, Any] | str) -> None:
    assert media.refusal(CLOSED, chat(part)) is None
    assert fingerprint("/v1/chat/completions", chat(part)) is not None


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://images.example.org/a.png?size=2", True),
        ("http://IMAGES.example.org:8080", True),
        ("https://example.org/a.png", False),
        ("https://other-images.example.org/a.png", False),
        ("https://images.example.org.evil.test/", False),
        ("https://images.example.org@localhost/", False),
        ("https://localhost/@images.example.org", False),
        ("https://localhost\\@images.example.org/", False),
        ("https://images.example.org\\@localhost/", False),
        ("https://images.example.org/a\n", False),
        ("ftp://images.example.org/a", False),
    ],
)
def test_only_urls_that_all_parsers_read_alike_are_of_an_allowed_domain(url: str, allowed: bool) -> None:
    assert (media.refusal(OPEN, chat(image(url))) is None) == allowed


def test_a_request_with_remote_media_has_no_fingerprint() -> None:
    """The image may change while its URL stays."""
    assert fingerprint("/v1/chat/completions", chat(image("https://images.example.org/a.png"))) is None


URL = "http://169.254.169.254/a.png"
SOURCE = {"type": "image", "source": {"type": "url", "url": URL}}
IMAGE = image(URL)


def said(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"input": said({"type": "input_image", "image_url": URL})}, "input[0].content[0]"),
        ({"input": [{"output": {"type": "computer_screenshot", "image_url": URL}}]}, "input[0].output"),
        ({"messages": said(SOURCE)}, "messages[0].content[0]"),
        ({"messages": said({"type": "tool_result", "content": [SOURCE]})}, "messages[0].content[0]"),
        ({"query": "a", "documents": [{"content": [IMAGE]}]}, "documents[0].content[0]"),
        ({"queries": {"content": [IMAGE]}}, "queries.content[0]"),
        ({"state": "a", "images": [DATA, URL]}, "images[1]"),
    ],
)
def test_a_url_is_seen_wherever_an_endpoint_takes_media(body: dict[str, Any], place: str) -> None:
    assert list(media.remote(body)) == [(place, URL)]


@pytest.mark.parametrize(
    "body",
    [
        {"input": f"see {URL}"},
        {"input": said({"type": "input_text", "text": f"see {URL}"})},
        {"input": [{"type": "function_call_output", "call_id": "1", "output": f"see {URL}"}]},
        {"messages": said({"type": "tool_use", "id": "1", "name": "get", "input": {"url": URL}})},
        {"query": URL, "documents": [URL]},
        {"state": {"url": URL}},
    ],
)
def test_a_url_in_a_text_or_in_the_arguments_of_a_tool_is_not_fetched(body: dict[str, Any]) -> None:
    assert list(media.remote(body)) == []


@pytest.mark.parametrize("url", ["http://localhost/a.wav", "file:///etc/passwd", "//example.org/a.wav"])
def test_audio_is_fetched_from_allowed_domains_only(url: str) -> None:
    answer = media.refusal(OPEN, {"model": "m", "file_url": url})
    assert answer is not None and answer.body is not None and answer.body["error"]["param"] == "file_url"
    assert media.refusal(OPEN, {"model": "m", "file_url": "https://images.example.org/a.wav"}) is None
    assert media.refusal(CLOSED, {"model": "m", "file_url": DATA}) is None


PART = {"type": "input_image", "image_url": URL}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": said({"type": "function_call", "image_url": {"url": URL}})},
        {"messages": said({"type": "tool_use", "image": URL})},
        {"messages": said({"image_url": {"url": URL}})},
        {"input": [PART]},
        {"input": [{"type": "input_file", "file_url": URL}]},
        {"input": [{"image": URL}]},
        {"input": "a", "instructions": said(PART)},
        {"input": "a", "prompt": {"id": "p", "variables": {"picture": PART}}},
        {"input": "a", "tools": [{"type": "mcp", "server_label": "a", "server_url": URL}]},
        {"messages": said(), "mcp_servers": [{"type": "url", "url": URL}]},
        {"messages": said(), "system": [SOURCE]},
        {"messages": said(), "prediction": {"type": "content", "content": [IMAGE]}},
        {"messages": said(), "documents": [{"image": URL}]},
        {"messages": said({"type": "image", "image": "file:/etc/passwd"})},
        {"messages": said(), "image_url": URL},
    ],
)
def test_a_url_is_seen_in_any_place_of_a_body(body: dict[str, Any]) -> None:
    assert media.refusal(CLOSED, body) is not None


SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"mcp": {"type": "string", "default": URL}},
}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "tool", "tool_call_id": "1", "content": f"see {URL}"}]},
        {"messages": said({"type": "tool_result", "tool_use_id": "1", "content": f"see {URL}"})},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "get", "arguments": {"url": URL}}}]}]},
        {"messages": said(), "tools": [{"type": "function", "function": {"description": URL, "parameters": SCHEMA}}]},
        {"messages": said(), "tools": [{"name": "get", "input_schema": SCHEMA}]},
        {"messages": said(), "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"messages": said(), "structured_outputs": {"regex": "https://.*"}},
        {"messages": said(), "stop": ["http://"], "user": URL, "metadata": {"url": URL, "mcp": "a"}},
        {"input": [{"type": "web_search_call", "action": {"type": "open_page", "url": URL}}]},
        {"input": said({"type": "output_text", "text": "a", "annotations": [{"type": "url_citation", "url": URL}]})},
    ],
)
def test_a_url_that_no_engine_fetches_is_no_media(body: dict[str, Any]) -> None:
    assert media.refusal(CLOSED, body) is None and media.reaching(CLOSED, body) is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"chat_template": "{{ 1 }}"}, "body.chat_template"),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "body.chat_template_kwargs.chat_template"),
        ({"kv_transfer_params": {"remote_host": "10.0.0.1"}}, "body.kv_transfer_params"),
        (
            {"sampling_params": {"extra_args": {"kv_transfer_params": {"remote_host": "a"}}}},
            "body.sampling_params.extra_args.kv_transfer_params",
        ),
        ({"mcp_servers": [{"type": "url", "url": URL}]}, "body.mcp_servers"),
        ({"tools": [{"type": "mcp", "server_label": "a", "server_url": URL}]}, "body.tools[0].type"),
        ({"mcp": {"url": URL}}, "body.mcp"),
    ],
)
def test_what_makes_a_server_run_code_or_connect_elsewhere_needs_the_operator(body: dict[str, Any], param: str) -> None:
    refused = media.reaching(CLOSED, body)
    assert refused is not None and refused[0] == param
    names = {"endpoints": [{"url": "http://a/v1"}], "allowed_parameters": sorted(media.REACHING)}
    allowing = ModelSpec(name="m", engine="openai", engine_args=names)
    assert media.reaching(allowing, body) is None and media.refusal(allowing, body) is None


def test_a_request_of_too_many_parts_is_refused_before_they_are_checked() -> None:
    part = {"type": "text", "text": "x"}
    assert media.too_many_parts(chat(*[part] * (media.MAX_PARTS - 1))) is None
    assert "more than 10,000" in str(media.too_many_parts(chat(*[part] * media.MAX_PARTS)))
    assert media.too_many_parts({"input": ["x"] * 50_000}) is None
