"""The engine actor marks the answers of simulated engines."""

from __future__ import annotations

from batchyard.models import ModelSpec
from inference.engine import Answer
from inference.engines.echo import Echo
from inference.residents import actor


class Pretender(Echo):
    """A simulated engine that claims to be a model."""

    def versions(self) -> dict[str, str]:
        return {"engine": "pretender", "model_sha256": "0" * 64, "simulated": "false"}


class Model(Echo):
    """An engine whose class says that it runs a model."""

    simulated = False


def test_answers_are_marked_by_what_the_engines_class_says() -> None:
    spec = ModelSpec(name="m", engine="echo")
    answer, refusal = Answer(200, {"choices": [], "simulated": False}), Answer.refused("no")
    simulated, real = Pretender(spec, 1.0), Model(spec, 1.0)
    assert actor.marked(answer, simulated).body == {"choices": [], "simulated": True}
    assert actor.marked(refusal, simulated) == refusal
    assert actor.marked(answer, real) == answer
    assert actor.marked_versions(simulated) == {"engine": "pretender", "simulated": "true"}
    assert actor.marked_versions(real) == real.versions()
