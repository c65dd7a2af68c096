"""What an input asks of each model, and what that would cost by what earlier batches have used."""

from __future__ import annotations

import json

import pytest

from store.artifacts import Artifacts
from tasks.context import AppContext
from tasks.intake import estimate
from tasks.intake.estimate import Part, parts, scaled
from tests.support.stacks import a_chat
from tests.support.webapps import on_sqlite

CHAT = "/v1/chat/completions"


def line(model: str = "echo", **body: object) -> bytes:
    return json.dumps(a_chat("a", "hello", model=model, **body)).encode()


def test_requests_are_summed_by_model() -> None:
    of = parts(CHAT, [line(max_tokens=5), line("other", max_tokens=7), line(max_tokens=6)])
    assert {model: (part.requests, part.limit) for model, part in of.items()} == {"echo": (2, 11), "other": (1, 7)}
    assert of["echo"].bytes == 2 * of["other"].bytes - 2, "bytes are those of bodies"


def test_one_request_without_a_limit_leaves_its_model_without_one() -> None:
    assert parts(CHAT, [line(max_tokens=5), line(), line(max_tokens=5)])["echo"].limit is None


@pytest.mark.parametrize("bad", [b"{", b"[]", b"{}", b'{"body": {}}', b'{"body": []}', b'{"body": {"model": 7}}'])
def test_what_is_no_request_is_left_out(bad: bytes) -> None:
    assert parts(CHAT, [bad]) == {}


def test_a_sample_stands_for_all_requests() -> None:
    assert scaled({"echo": Part(3, 100, 30), "other": Part(1, 10, None)}, 2.5) == {
        "echo": Part(8, 250, 75),
        "other": Part(2, 25, None),
    }


@on_sqlite
def test_of_a_long_file_the_first_requests_say_what_the_others_are_like(
    context: AppContext, artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "SAMPLE", 2)
    requests, of = estimate.of_file(
        context, CHAT, artifacts.put(b"\n".join([line(), line(), b"", line("other"), line()]))
    )
    assert (requests, of.keys(), of["echo"].requests) == (4, {"echo"}, 4)
    assert estimate.of_file(context, CHAT, artifacts.put(b"\n\n")) == (0, {})


@on_sqlite
def test_without_a_tariff_nobody_can_say_what_it_would_cost(context: AppContext, project: str) -> None:
    with context.database.read() as session:
        assert estimate.estimate(context, session, project, {"echo": Part(1, 10, None)}) is None
        assert estimate.estimate(context, session, project, {}) is None
