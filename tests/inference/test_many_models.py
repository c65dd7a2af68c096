"""Warm engines take no room that another model's run needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batchyard.models import ModelSpec
from inference import pipeline
from inference.residents import directory
from inference.residents.session import EngineTimeouts
from tests.support.rows import chat, table

ENGINES = 21
"""Of 0.1 CPUs each, two CPUs would have room for 20."""


@pytest.fixture(autouse=True)
def no_engine_left(cluster: str) -> Iterator[None]:
    yield
    directory.stop_all()


def answered(model: str, requests: int) -> int:
    spec = ModelSpec(name=model, engine="echo", engine_args={"slots": 2, "ms_per_token": 5})
    rows = table(chat(*map(str, range(requests))))
    timeouts = EngineTimeouts(request_timeout=30.0, start_timeout=60.0, idle_seconds=600.0)
    return sum(answers.num_rows for answers in pipeline.run(spec, "/v1/chat/completions", rows, timeouts))


def test_more_warm_engines_than_the_cluster_has_cpus_leave_room_for_a_large_run() -> None:
    for number in range(ENGINES):
        assert answered(f"warm-{number}", 2) == 2
    assert len(directory.states()) == ENGINES
    assert answered("large", 60) == 60, "more than its engine holds, so Ray Data runs them"
