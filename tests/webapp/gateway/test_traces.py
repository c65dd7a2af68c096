"""A live request has a span if its client samples it, and a share of those that say nothing have one."""

from __future__ import annotations

import httpx
import pytest

from batchyard.endpoints.catalog import CHAT
from tests.support.gateways import RunningGateway
from tests.support.traces import record_spans
from tests.webapp.gateway.conftest import MODELS
from webapp.gateway import traces

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_sampled_request_has_a_span_with_its_tokens_below_its_client_and_no_content(
    gateway: RunningGateway, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = record_spans(monkeypatch)
    for model in ("echo", "ecko"):
        body = {"model": model, "messages": [{"role": "user", "content": "three wagons"}]}
        headers = {"Authorization": f"Bearer {key}", "traceparent": CLIENT}
        httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    [span] = recorder.spans
    assert (span.name, span.trace, span.parent) == ("chat echo", *CLIENT.split("-")[1:3])
    assert not span.error and span.start < span.end
    tokens = {name: span.attributes.pop(f"gen_ai.usage.{name}_tokens") for name in ("input", "output")}
    assert all(tokens.values())
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "echo",
        "gen_ai.request.model": "echo",
        "http.response.status_code": 200,
    }


def test_a_request_that_says_nothing_is_one_of_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_spans(monkeypatch)
    for share in (0.0, 1.0):
        with traces.of_request({}, CHAT.path, MODELS["echo"], 0.0, share):
            pass
    [span] = recorder.spans
    assert span.parent == ""
