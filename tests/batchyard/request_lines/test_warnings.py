"""What is most likely a mistake in a request is told by its first line, and stops no request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batchyard.endpoints.bodies.validation import misspelt
from batchyard.endpoints.catalog import CHAT
from batchyard.request_lines import warnings
from batchyard.request_lines.warnings import ParameterWarnings
from inference.engines.vllm.parameters import SUPPORTED

MISSPELT = {
    "code": "misspelt_parameter",
    "line": 2,
    "message": (
        "/v1/chat/completions has no parameter 'tempreature', so an engine may ignore it; did you mean 'temperature'?"
    ),
    "param": "body.tempreature",
}


def test_a_misspelt_parameter_is_told_once_by_its_first_line() -> None:
    found = ParameterWarnings(CHAT.path)
    found.add(1, ["model", "messages", "temperature", "top_of_mind"])
    found.add(2, ["model", "messages", "tempreature"])
    found.add(3, ["model", "messages", "tempreature"])
    assert found.entries == [MISSPELT]


def test_warnings_are_bounded_whatever_names_a_file_has() -> None:
    found = ParameterWarnings(CHAT.path)
    for line in range(3 * warnings.MOST):
        found.add(line, [f"temperature{line}"])
    assert len(found.entries) == warnings.MOST


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"body": 1}', b'{"body": null}'])
def test_a_line_that_is_no_request_has_no_warnings(raw: bytes) -> None:
    assert warnings.of_line(CHAT.path, 1, raw) == []


def test_a_line_of_windows_has_the_warnings_of_any_other() -> None:
    body: dict[str, Any] = {"model": "m", "messages": [], "tempreature": 1}
    assert warnings.of_line(CHAT.path, 2, json.dumps({"body": body}).encode("utf-8-sig")) == [MISSPELT]


@pytest.mark.parametrize("endpoint", SUPPORTED)
def test_no_parameter_that_an_engine_knows_is_taken_for_a_misspelt_one(endpoint: str) -> None:
    assert list(misspelt(endpoint, SUPPORTED[endpoint])) == []
