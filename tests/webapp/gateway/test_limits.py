"""Limits of live requests: what a key may send, and how the answer says so."""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace

import httpx
import pytest

from batchyard.settings import Settings
from tests.support.rows import until
from tests.webapp.gateway.conftest import Send


class TestRequests:
    @pytest.fixture
    def settings(self, broker: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
        now = time.time() // 60 * 60 + 30  # the limiter's windows begin with the minutes of the clock
        monkeypatch.setattr("limits.storage.memory.time", SimpleNamespace(time=lambda: now))
        return Settings(redis_url=broker, allow_simulated=True, live_requests_per_minute=3)

    def test_more_requests_a_minute_than_a_key_may_send_are_refused_with_openais_headers(self, send: Send) -> None:
        answers = [send() for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["2", "1", "0", "0"]
        refused = answers[-1]
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(refused.headers["Retry-After"]) <= 60 and refused.headers["x-ratelimit-reset-requests"].endswith("s")


class TestTokens:
    @pytest.fixture
    def settings(self, broker: str) -> Settings:
        return Settings(redis_url=broker, allow_simulated=True, live_tokens_per_minute=10)

    def test_tokens_of_answers_count_against_the_next_requests(self, send: Send) -> None:
        assert send("one two three four five").status_code == 200
        for _ in range(50):
            answer = send("one")
            if answer.status_code == 429:
                break
        assert answer.status_code == 429 and "tokens a minute" in answer.json()["error"]["message"]


class TestAtOnce:
    @pytest.fixture
    def settings(self, broker: str) -> Settings:
        return Settings(redis_url=broker, allow_simulated=True, live_requests_at_once=2)

    def test_a_key_waits_for_so_many_answers_at_once(self, send: Send, http: httpx.Client) -> None:
        long = {"model": "paced", "max_tokens": 5000, "messages": [{"role": "user", "content": "hi"}], "stream": True}
        with contextlib.ExitStack() as open_:
            for _ in range(2):
                open_.enter_context(http.stream("POST", "/v1/chat/completions", json=long))
            answer = send(model="echo")
            assert answer.status_code == 429 and "at once" in answer.json()["error"]["message"]
        until(lambda: send(model="echo").status_code == 200)
