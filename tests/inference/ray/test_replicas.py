"""A model runs with the replicas that are there, takes in more as they come, and outlives the loss of a node."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psutil
import pyarrow as pa
import pytest
from ray.util import placement_group, remove_placement_group

from batchyard.errors import EngineStartError
from batchyard.models import ModelSpec
from inference import pipeline
from inference.ray import replicas, starts
from inference.residents import directory, gpu_eviction
from inference.residents.session import EngineTimeouts
from tests.support.ray_nodes import gpu_node, gpus, stop_engines
from tests.support.rows import chat, table, until

CHAT = "/v1/chat/completions"
IN_FLIGHT, LATENCY = 32, 0.5


@pytest.fixture(autouse=True)
def no_engine_left(cluster: str) -> Iterator[None]:
    yield
    stop_engines()


@pytest.fixture(scope="module")
def node(cluster: str) -> Iterator[Callable[[], Callable[[], None]]]:
    """Starts the node with a GPU that the tests share, unless it runs. Returns what kills it."""
    kills: list[Callable[[], None]] = []
    with ExitStack() as nodes:

        def start() -> Callable[[], None]:
            if not gpus():
                kills.append(nodes.enter_context(gpu_node(cluster)))
            return kills[-1]

        yield start


def a_model(num_gpus: int = 1) -> ModelSpec:
    """A model with two replicas that need GPUs, of which each answers IN_FLIGHT rows in LATENCY seconds."""
    arguments = {"latency_ms": 1000 * LATENCY}
    return ModelSpec(
        name="m", engine="echo", replicas=2, num_gpus=num_gpus, max_in_flight=IN_FLIGHT, engine_args=arguments
    )


def answers(rows: int) -> Iterator[int]:
    """The lines of rows that were answered, as they come. None may be an error."""
    timeouts = EngineTimeouts(request_timeout=240.0, start_timeout=240.0, idle_seconds=60.0)
    for answered in pipeline.run(a_model(), CHAT, table(chat(*map(str, range(rows)))), timeouts):
        for row in answered.to_pylist():
            assert row["ok"], json.loads(row["answer"])
            yield row["line"]


def requests() -> list[int]:
    return sorted(state.answered for state in directory.states().values())


def answered_beside(first: str) -> int:
    """Return how much other engines have answered, as last published."""
    states = directory.states(timeout=0.5).values()
    return sum(state.answered for state in states if state.name != first)


# The test of a replica that comes later begins with the one that finds room.
@pytest.mark.exhaustive
def test_a_model_runs_with_the_replicas_that_find_room(node: Callable[[], Callable[[], None]]) -> None:
    node()
    assert sorted(answers(100)) == list(range(100))
    until(lambda: requests() == [100])


def test_a_model_for_which_no_node_has_room_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "UNPLACED_SECONDS", 600.0)  # it is told at once what no node can ever have
    monkeypatch.setattr(gpu_eviction, "PLACING_SECONDS", 0.5)
    timeouts = EngineTimeouts(request_timeout=30.0, start_timeout=600.0, idle_seconds=60.0)
    with pytest.raises(EngineStartError, match=r"m has no place in the cluster: .* needs 4 GPUs .* with [01] GPUs"):
        list(pipeline.run(a_model(num_gpus=4), CHAT, table(chat("hi")), timeouts))
    until(lambda: not directory.engine_actors(), seconds=30)


def test_a_replica_that_comes_later_takes_its_part_until_it_is_killed_with_its_node(
    cluster: str, node: Callable[[], Callable[[], None]]
) -> None:
    node()
    with gpu_node(cluster, '--resources={"later": 1}') as kill:
        taken = placement_group([{"GPU": 1, "later": 1}])
        assert taken.wait(240)
        run = answers(500)
        lines = [next(run)]
        until(lambda: len(requests()) == 1)
        (first,) = directory.states(timeout=60.0).values()
        process = psutil.Process(first.process["pid"])
        process.suspend()  # however late the other one comes, there are rows for it
        remove_placement_group(taken)
        until(lambda: answered_beside(first.name) >= 64)
        process.resume()
        kill()
        began = time.monotonic()
        lines += run
        seconds = time.monotonic() - began
    assert sorted(lines) == list(range(500)), "its rows have moved to the other"
    assert seconds < 60, "one replica needs 8 s for all"


@pytest.mark.exhaustive
def test_a_run_whose_only_node_with_room_has_gone_says_so(
    node: Callable[[], Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = node()
    monkeypatch.setattr(starts, "UNPLACED_SECONDS", 3.0)
    spec = a_model().model_copy(update={"replicas": 1, "engine_args": {"latency_ms": 600_000}})
    timeouts = EngineTimeouts(request_timeout=600.0, start_timeout=600.0, idle_seconds=60.0)

    def kill_at_work() -> None:
        until(lambda: requests() == [2], seconds=60)
        kill()

    threading.Thread(target=kill_at_work).start()
    with pytest.raises(EngineStartError, match="model m has no place in the cluster"):
        list(pipeline.run(spec, CHAT, table(chat("hi", "ho")), timeouts))


def test_turns_of_an_item_go_to_the_replica_that_had_the_turns_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "SHARE_SECONDS", 600.0)  # one that is late to be there keeps its rows
    spec = ModelSpec(name="m", engine="echo", replicas=2, max_in_flight=IN_FLIGHT)
    timeouts = EngineTimeouts(request_timeout=30.0, start_timeout=240.0, idle_seconds=60.0)

    def run(turn: int, items: int) -> list[int]:
        """Run a turn of each item. Return how many requests each replica has answered so far."""
        rows = table(chat(*map(str, range(items))))
        names = pa.array([f"item-{number}/turn.{turn}.0" for number in range(items)])
        rows = rows.set_column(rows.schema.get_field_index("custom_id"), "custom_id", names)
        assert sum(answered.num_rows for answered in pipeline.run(spec, CHAT, rows, timeouts, by_item=True)) == items
        return [state.answered for _, state in sorted(directory.states(timeout=60.0).items())]

    until(lambda: len(run(0, 1)) == 2, seconds=60)
    before = run(0, 1)
    items = IN_FLIGHT  # a run of more would have its caller in another process
    first = [after - earlier for after, earlier in zip(run(1, items), before, strict=True)]
    assert sum(first) == items and min(first) > 5
    for turn in range(2, 5):
        answered = run(turn, items)
        assert answered == [earlier + turn * number for earlier, number in zip(before, first, strict=True)]
