"""The directory of engine actors."""

from __future__ import annotations

from batchyard.models import ModelSpec
from inference.residents import directory


def test_a_residents_name_holds_all_that_its_answers_depend_on() -> None:
    spec = ModelSpec(name="a:b", engine="echo")
    other = spec.model_copy(update={"engine_args": {"latency_ms": 1}})
    names = {directory.actor_name(model, timeout, 0) for model in (spec, other) for timeout in (1, 2)}
    assert len(names) == 4
    assert {directory.model_and_replica(name)[0] for name in names} == {"a:b"}
