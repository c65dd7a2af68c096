"""Inline requests get the method and the url of their batch where they have none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from store.artifacts import Artifacts
from tasks.intake.envelopes import Envelopes

ENDPOINT = "/v1/embeddings"


def stored(artifacts: Artifacts, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines that are stored for these requests."""
    envelopes, lines = Envelopes(), artifacts.create()
    for number, request in enumerate(requests):
        line = envelopes.line(f"requests.{number}", {key: json.dumps(value).encode() for key, value in request.items()})
        lines.write(b"{" + b",".join(json.dumps(key).encode() + b":" + value for key, value in line.items()) + b"}\n")
    return [
        json.loads(line) for line in artifacts.read(envelopes.stored(artifacts, lines, ENDPOINT).sha256).splitlines()
    ]


def test_a_request_of_body_and_custom_id_gets_the_rest(artifacts: Artifacts) -> None:
    bare = {"custom_id": "a", "body": {"url": None}}
    assert stored(artifacts, bare) == [bare | {"method": "POST", "url": ENDPOINT}]


@pytest.mark.parametrize("missing", [{}, {"url": None}, {"method": None}, {"url": None, "method": None}])
def test_what_a_request_says_itself_stays(artifacts: Artifacts, missing: dict[str, None]) -> None:
    request = {"custom_id": "a", "method": "GET", "url": "/v1/other", "body": {}} | missing
    (line,) = stored(artifacts, request)
    assert line["method"] == ("POST" if "method" in missing else "GET")
    assert line["url"] == (ENDPOINT if "url" in missing else "/v1/other")


def test_bare_and_whole_requests_stay_in_their_order(artifacts: Artifacts) -> None:
    whole = {"custom_id": "b", "method": "POST", "url": ENDPOINT, "body": {}}
    lines = stored(artifacts, {"custom_id": "a", "body": {}}, whole, {"custom_id": "c", "body": {}})
    assert [line["custom_id"] for line in lines] == ["a", "b", "c"]
    assert {(line["method"], line["url"]) for line in lines} == {("POST", ENDPOINT)}
