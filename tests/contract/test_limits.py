"""Rate limits and limits in bytes: 429 with the headers that a client needs to retry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.support.webapps import client_of, context_in, upload

# The web application of these tests is their own, on SQLite.
pytestmark = pytest.mark.local
Web = Callable[..., FlaskClient]


@pytest.fixture
def web(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Web:
    """A web application with these settings, on a real broker."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    return lambda **limits: client_of(context_in(tmp_path, **limits))


def test_requests_beyond_the_limit_are_told_when_to_come_back(web: Web) -> None:
    client = web(requests_per_minute=3)
    answers = [client.get("/v1/models") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["2", "1", "0", "0"]
    last = answers[-1]
    assert last.headers["x-ratelimit-limit-requests"] == "3"
    assert last.headers["x-ratelimit-reset-requests"].endswith("s")
    assert 0 < int(last.headers["Retry-After"]) <= 120
    error = last.get_json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")


def test_one_keys_limit_is_not_anothers(web: Web) -> None:
    first, second = web(requests_per_minute=1), web(requests_per_minute=1)
    assert [first.get("/v1/models").status_code for _ in range(2)] == [200, 429]
    assert second.get("/v1/models").status_code == 200


def test_uploaded_bytes_are_limited_while_they_stream(web: Web, tmp_path: Path) -> None:
    client = web(upload_bytes_per_minute=10_000_000)
    assert upload(client, b"x" * 9_000_000).headers["x-ratelimit-remaining-bytes"] == "1000000"
    answer = upload(client, b"x" * 9_000_000)
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 0
    stored = [path for path in (tmp_path / "data" / "artifacts").rglob("*") if path.is_file()]
    assert len(stored) == 1


def test_bytes_of_prompts_count_as_uploaded(web: Web) -> None:
    client = web(upload_bytes_per_minute=100_000)
    prompts = {"model": "echo", "prompts": ["x" * 60_000]}
    answers = [client.post("/start", json=prompts) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 429]
    assert 0 < int(answers[0].headers["x-ratelimit-remaining-bytes"]) < 40_000


def test_a_project_has_only_so_many_bytes_in_flight(web: Web) -> None:
    client = web(max_bytes_in_flight=1500)
    file_id = upload(client, b"x" * 1000).get_json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    answer = client.post("/v1/batches", json=body)
    assert answer.status_code == 200
    refused = client.post("/v1/batches", json=body)
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) > 0
    assert "unfinished batches and jobs have 1000 bytes" in refused.get_json()["error"]["message"]
