"""Engines are looked up by name, and what their classes say is checked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from importlib.metadata import EntryPoint
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from batchyard.errors import ConfigurationError
from batchyard.models import ModelSpec
from inference.engine import Capabilities, Engine, JobEngine
from inference.engines.echo import Echo
from inference.engines.registry import BUILT_IN, ENGINES, capabilities, check_arguments, engine_class, unfit


@pytest.mark.long
def test_the_built_in_engines_say_their_names_without_their_heavy_parts() -> None:
    code = (
        "import sys; from inference.engines.registry import capabilities; "
        "print([name for name in sys.argv[1:] if capabilities(name).name != name]); "
        "print({'torch', 'vllm', 'transformers', 'ray', 'flask', 'celery'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code, *BUILT_IN], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\nset()\n"


def test_an_unknown_engine_and_unknown_arguments_are_refused_with_the_nearest_right_ones() -> None:
    with pytest.raises(ConfigurationError, match="transformers"):
        engine_class("transformer")
    with pytest.raises(ConfigurationError, match=r"models\.m\.engine_args\.batchsize.*batch_size"):
        check_arguments(ModelSpec(name="m", engine="transformers", source="x", engine_args={"batchsize": 2}))
    with pytest.raises(ConfigurationError, match=r"engine_args\.batch_size: must be a whole number, more than 0"):
        check_arguments(ModelSpec(name="m", engine="transformers", source="x", engine_args={"batch_size": 0}))


def test_an_engine_that_cannot_run_requests_alone_or_in_one_replica_says_so() -> None:
    echo, job = ModelSpec(name="m", engine="echo", replicas=2), ModelSpec(name="j", engine="vllm-job", source="x")
    assert unfit(echo, alone=True, replica=1) is unfit(job, alone=False, replica=None) is None
    assert unfit(echo, alone=False, replica=2) == "model m has 2 replicas, counted from 0, and none is number 2"
    for alone, replica in ((True, None), (False, 0)):
        problem = "engine vllm-job of model j shares out all requests itself; leave out alone and replica"
        assert unfit(job, alone=alone, replica=replica) == problem


SCHEMA = {"type": "object"}


@pytest.mark.parametrize("engine", ["vllm", "vllm-job"])
def test_vllm_takes_every_form_of_an_answer_as_its_own_parameter(engine: str) -> None:
    forms = {"json": SCHEMA, "regex": "a+", "choice": ["a", "b"], "grammar": 'root ::= "a"'}
    structures = [capabilities(engine).structure(kind, value) for kind, value in forms.items()]
    assert structures == [{"structured_outputs": {kind: value}} for kind, value in forms.items()]


def test_a_server_of_others_gets_a_schema_as_openais_parameter_and_other_forms_as_vllms() -> None:
    structure = capabilities("openai").structure
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    assert structure("json", SCHEMA) == {"response_format": schema}
    assert structure("grammar", "root") == {"structured_outputs": {"grammar": "root"}}


def test_an_engine_without_forms_says_so() -> None:
    assert [capabilities("transformers").structure(kind, "a") for kind in ("json", "regex", "choice", "grammar")] == [
        None
    ] * 4
    assert [capabilities("echo").structure(kind, ["a"]) for kind in ("json", "choice")] == [
        None,
        {"structured_outputs": {"choice": ["a"]}},
    ]


class Bare(Capabilities):
    """An engine of neither kind."""

    name = "bare"


class Half(Engine):
    """An engine that lacks most methods."""

    name = "half"

    async def stop(self) -> None: ...


class Nameless(JobEngine):
    """A job without a name."""

    @classmethod
    def unsupported(cls, spec: ModelSpec, endpoint: str, body: dict[str, Any]) -> tuple[str, str] | None:
        return None

    @classmethod
    def run(
        cls, spec: ModelSpec, endpoint: str, rows: pa.Table, *, request_timeout: float, start_timeout: float
    ) -> Generator[pa.Table]:
        yield rows

    @classmethod
    def versions(cls, spec: ModelSpec, *, start_timeout: float) -> dict[str, str]:
        return {}


class SimulatedJob(Nameless):
    """A job whose answers would be made up."""

    name = "simulated"
    simulated = True


class Shout(Echo):
    """A simulated engine of another package."""

    name = "shout"


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (Bare, "is no subclass of inference.engine.Engine or JobEngine"),
        (check_arguments, "is no subclass of inference.engine.Engine or JobEngine"),
        (Half, "lacks the methods answer, start, unsupported, versions"),
        (Nameless, "has no attribute `name`"),
        (SimulatedJob, "is simulated and a JobEngine"),
        (Shout, "calls itself 'shout'; give both the same name"),
    ],
)
def test_an_entry_point_of_no_usable_engine_is_refused(engine: Any, says: str) -> None:
    entry = EntryPoint("mine", f"{engine.__module__}:{engine.__name__}", "batchyard.engines")
    with (
        mock.patch.dict(ENGINES.added, {"mine": entry}),
        pytest.raises(ConfigurationError, match=rf"entry point 'mine = .*{says}.* uninstall"),
    ):
        capabilities("mine")
