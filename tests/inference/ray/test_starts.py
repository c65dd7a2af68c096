"""What came of a replica's start is decided in one place, for the pipeline and the caller alike."""

from __future__ import annotations

from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayTaskError

from batchyard.errors import EngineDied, EngineStartError, UnavailableError
from batchyard.models import ModelSpec
from inference.ray import starts
from inference.residents.actor import StartedEngine

SPEC = ModelSpec(name="m", engine="echo")


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    killed: list[Any] = []
    monkeypatch.setattr(starts.ray, "kill", killed.append)
    return killed


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether the replicas wait for a node, and whether none could ever have them."""
    nodes = {"unplaced": False, "fits_none": False}
    monkeypatch.setattr(starts, "are_unplaced", lambda handles: bool(handles) and nodes["unplaced"])
    monkeypatch.setattr(starts, "fits_no_node", lambda _gpus: nodes["fits_none"])
    monkeypatch.setattr(starts, "gpus", lambda _spec: 1.0)
    monkeypatch.setattr(starts, "no_place", lambda *_: "no place")
    monkeypatch.setattr(starts, "_waits_for", lambda _handles: "")
    monkeypatch.setattr(starts, "start_timed_out", lambda *_: "too late")
    return nodes


def test_an_engine_that_runs_is_the_outcome(killed: list[Any]) -> None:
    engine = StartedEngine({"engine": "echo"}, 256)
    assert starts.outcome(SPEC, "actor", engine) == starts.StartOutcome(engine=engine)
    assert starts.outcome(SPEC, "actor", None) == starts.StartOutcome(), "it was being stopped"
    assert killed == []


def test_an_engine_that_cannot_start_says_why_and_is_killed(killed: list[Any]) -> None:
    error = RayTaskError("ready", "traceback", EngineStartError("no such weights"))
    failure = starts.outcome(SPEC, "actor", error).failure
    assert isinstance(failure, EngineStartError) and "no such weights" in failure.message
    assert killed == ["actor"]


def test_an_engine_that_has_died_in_its_actor_is_a_death_and_makes_room_for_the_next(killed: list[Any]) -> None:
    error = RayTaskError("ready", "traceback", EngineDied("SIGKILL"))
    assert starts.outcome(SPEC, "actor", error) == starts.StartOutcome(death="SIGKILL")
    assert killed == ["actor"]


def test_a_node_that_does_not_answer_is_no_failure_of_the_engine(killed: list[Any]) -> None:
    outcome = starts.outcome(SPEC, "actor", ActorUnavailableError("away", None))
    assert isinstance(outcome.failure, UnavailableError) and outcome.death is None and killed == []


def test_a_process_that_ended_has_died_unless_it_was_stopped() -> None:
    assert starts.outcome(SPEC, "actor", RayActorError(None, "SIGKILL")).death is not None
    assert starts.outcome(SPEC, "actor", RayActorError(None, "killed by ray.kill")) == starts.StartOutcome()


def test_another_error_of_ray_is_raised() -> None:
    with pytest.raises(GetTimeoutError):
        starts.outcome(SPEC, "actor", GetTimeoutError("late"))


@pytest.mark.parametrize(
    ("seconds", "unplaced", "fits_none", "reason"),
    [
        (1.0, True, True, None),
        (6.0, True, True, "no place"),
        (6.0, True, False, None),
        (31.0, True, False, "no place"),
        (31.0, False, True, None),
        (61.0, False, False, "too late"),
    ],
)
def test_a_start_is_given_up_where_no_node_has_room_or_after_its_time(
    killed: list[Any], nodes: dict[str, bool], seconds: float, unplaced: bool, fits_none: bool, reason: str | None
) -> None:
    nodes.update(unplaced=unplaced, fits_none=fits_none)
    error = starts.hopeless(SPEC, ["one", "two"], seconds, timeout=60.0)
    assert (error and error.message) == reason
    assert killed == ([] if reason is None else ["one", "two"])
