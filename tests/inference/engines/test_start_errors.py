"""What a user reads when an engine does not start in the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.exceptions import RayTaskError

from batchyard.errors import EngineStartError
from batchyard.models import ModelSpec
from inference.engines.start_errors import fits_no_node, no_place, start_error, start_timed_out

SPEC = ModelSpec(name="mini", engine="echo")


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a cluster of these nodes, the last of them dead."""

    def make(*resources: dict[str, float]) -> None:
        entries: list[dict[str, Any]] = [{"Alive": True, "Resources": each} for each in resources]
        entries[-1]["Alive"] = False
        monkeypatch.setattr(ray, "nodes", lambda: entries)
        monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 3.0})
        monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 4.0})

    return make


@pytest.mark.parametrize(
    ("cause", "reason"),
    [(EngineStartError("no kernel image is available"), "no kernel image"), (KeyError("rope"), "KeyError: 'rope'")],
)
def test_the_engines_own_reason_is_told_without_a_traceback(cause: Exception, reason: str) -> None:
    error = start_error(SPEC, RayTaskError("start", "Traceback (most recent call last)", cause))
    assert error.message.startswith(f"engine echo of model mini does not start: {reason}")
    assert "Traceback" not in error.message


def test_a_replica_fits_only_on_one_living_node_with_all_its_gpus(nodes: Callable[..., None]) -> None:
    nodes({"CPU": 4, "GPU": 2}, {"CPU": 4, "GPU": 1}, {"CPU": 64, "GPU": 8})
    assert (fits_no_node(2), fits_no_node(3), fits_no_node(0)) == (False, True, False)
    nodes({"GPU": 2}, {"CPU": 64})
    assert fits_no_node(0), "a node without a CPU runs no replica"


def test_an_engine_without_a_place_says_what_it_needs_and_what_there_is(nodes: Callable[..., None]) -> None:
    nodes({"CPU": 4, "GPU": 2}, {"CPU": 4, "GPU": 1}, {"CPU": 64, "GPU": 8})
    message = no_place(SPEC, 4)
    assert "needs 4 GPUs on one node; the cluster has 2 nodes with 3 GPUs (0 free), 8 CPUs (4 free)" in message
    assert "at most 2 GPUs on one" in message and message.endswith("or lower num_gpus")
    assert "needs a CPU on one node" in no_place(SPEC, 0)


def test_a_start_that_takes_too_long_says_how_long_and_what_was_free(nodes: Callable[..., None]) -> None:
    nodes({"CPU": 4}, {})
    message = start_timed_out(SPEC, 90.0)
    assert "did not start within 90 seconds" in message and 'of which free: {"CPU": 4.0}' in message
