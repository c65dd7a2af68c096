"""Rate limits: what a response says of them, who is refused, and that none is kept while Redis is away."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from flask.testing import FlaskClient
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from batchyard.errors import RateLimitError
from tasks.context import AppContext
from tests.support.webapps import client_of, context_in, upload
from webapp import limits


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppContext:
    """A context whose keys may send three requests, and 1,000 bytes, a minute."""
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    return context_in(tmp_path, requests_per_minute=3, upload_bytes_per_minute=1000)


@pytest.fixture
def counted(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    """A client of an app that counts in its memory."""
    now = time.time() // 60 * 60 + 30  # the limiter's windows begin with the minutes of the clock
    monkeypatch.setattr("limits.storage.memory.time", SimpleNamespace(time=lambda: now))
    client.application.extensions["limiter"] = SlidingWindowCounterRateLimiter(MemoryStorage())
    return client


def test_a_response_says_what_is_left_and_one_too_many_is_told_when_to_come_again(counted: FlaskClient) -> None:
    remaining = [counted.get("/v1/models").headers["x-ratelimit-remaining-requests"] for _ in range(3)]
    assert remaining == ["2", "1", "0"]
    refused = counted.get("/v1/models")
    assert (refused.status_code, refused.headers["x-ratelimit-limit-requests"]) == (429, "3")
    assert 0 < int(refused.headers["Retry-After"]) <= 60
    assert "3 requests a minute with one key" in refused.get_json()["error"]["message"]


def test_each_key_has_its_own_limit(counted: FlaskClient, context: AppContext) -> None:
    for _ in range(4):
        counted.get("/v1/models")
    other = client_of(context)
    other.application.extensions["limiter"] = counted.application.extensions["limiter"]
    assert other.get("/v1/models").status_code == 200


def test_uploaded_bytes_are_counted_and_too_many_store_nothing(counted: FlaskClient, context: AppContext) -> None:
    first = upload(counted, b"x" * 700)
    assert (first.status_code, first.headers["x-ratelimit-remaining-bytes"]) == (200, "300")
    refused = upload(counted, b"y" * 700)
    assert refused.status_code == 429 and "1000 bytes a minute" in refused.get_json()["error"]["message"]
    assert len(counted.get("/v1/files").get_json()["data"]) == 1


def test_an_address_with_ten_wrong_keys_waits_and_another_does_not(counted: FlaskClient) -> None:
    with counted.application.app_context():
        for _ in range(10):
            limits.count_failed_sign_in("10.0.0.1")
        with pytest.raises(RateLimitError) as refused:
            limits.count_failed_sign_in("10.0.0.1")
        limits.count_failed_sign_in("10.0.0.2")
    assert 1 <= refused.value.retry_after <= 60


def test_while_redis_is_away_nothing_is_limited(client: FlaskClient) -> None:
    answers = [client.get("/v1/models") for _ in range(5)]
    assert {answer.status_code for answer in answers} == {200}
    assert not any(name.lower().startswith("x-ratelimit") for name, _ in answers[0].headers)
    with client.application.app_context():
        for _ in range(20):
            limits.count_failed_sign_in("10.0.0.1")
