"""Models that share a GPU: who has no work makes way, and who has some is let be."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pyarrow as pa
import pytest

from batchyard.errors import GpuBusy
from batchyard.models import ModelSpec
from inference import pipeline
from inference.residents import directory, gpu_eviction
from inference.residents.session import EngineTimeouts
from tests.support.ray_nodes import gpu_node, stop_engines
from tests.support.rows import chat, table

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module", autouse=True)
def gpu(cluster: str) -> Iterator[None]:
    """A second node with one GPU."""
    with gpu_node(cluster):
        yield


@pytest.fixture(autouse=True)
def no_engine_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gpu_eviction, "PLACING_SECONDS", 1.0)
    yield
    stop_engines()


def start(name: str, *texts: str, **arguments: Any) -> Generator[pa.Table]:
    spec = ModelSpec(name=name, engine="echo", num_gpus=1, max_in_flight=32, engine_args=arguments)
    return pipeline.run(spec, CHAT, table(chat(*texts)), EngineTimeouts(30, 240, 60))


def test_an_idle_engine_makes_way_for_a_model_that_finds_no_gpu_free() -> None:
    for name in ("first", "second"):
        assert sum(answers.num_rows for answers in start(name, "hi", "ho")) == 2
    assert [state.model for state in directory.states().values()] == ["second"]


def test_a_model_has_no_room_while_another_works_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_eviction, "PATIENCE_SECONDS", 1.0)
    answers = start("busy", *map(str, range(1024)), latency_ms=1000)
    next(answers)
    with pytest.raises(GpuBusy, match="model waiting waits for a GPU: engines of busy are at work"):
        next(start("waiting", "hi"))
    assert next(answers).num_rows
    answers.close()
