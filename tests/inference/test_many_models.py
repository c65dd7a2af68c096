"""Warm engines take no room that another model's run needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray

from batchyard.models import ModelSpec
from inference import pipeline
from inference.residents import directory
from inference.residents.session import EngineTimeouts
from tests.support.ray_nodes import stop_engines
from tests.support.rows import chat, table, until

ENGINES = 2
SHARE = 0.01
"""Of a CPU. Of engines that ask for no more, a hundred leave half of two CPUs free."""


@pytest.fixture(autouse=True)
def no_other_engines(cluster: str) -> Iterator[None]:
    """End what other tests left, which would count here, and what these leave."""
    stop_engines()
    yield
    stop_engines()


def answered(model: str, requests: int) -> int:
    spec = ModelSpec(name=model, engine="echo", engine_args={"slots": 2, "ms_per_token": 5})
    rows = table(chat(*map(str, range(requests))))
    timeouts = EngineTimeouts(request_timeout=30.0, start_timeout=240.0, idle_seconds=600.0)
    return sum(answers.num_rows for answers in pipeline.run(spec, "/v1/chat/completions", rows, timeouts))


def test_warm_engines_take_next_to_nothing_of_the_cpus_that_a_large_run_needs() -> None:
    for number in range(ENGINES):
        assert answered(f"warm-{number}", 2) == 2
    until(lambda: len(directory.states()) == ENGINES)
    until(lambda: taken() <= ENGINES * SHARE)
    assert answered("large", 60) == 60, "more than its engine holds, so Ray Data runs them"


def taken() -> float:
    """Return how many of the cluster's CPUs somebody has asked for. Ray says so with some delay."""
    return float(ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0.0))
