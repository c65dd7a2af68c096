"""Models that a tune derives: known while its jobs run, made of the served model's entry and a cell's overrides."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchyard.errors import ConfigurationError
from batchyard.models import ModelSpec
from jobs.tune import derived
from recipes.tune.cells import Cell
from store.jobs import lifecycle
from tasks.context import AppContext
from tasks.port import running_models
from tests.support.jobs import start_job
from tests.support.webapps import on_sqlite

ECHO = {"name": "echo", "engine": "echo", "engine_args": {"slots": 4}}


def cell(**overrides: object) -> Cell:
    return Cell(name="c1", model="echo", overrides=overrides)


@on_sqlite
def test_a_derived_model_may_run_as_long_as_its_job(context: AppContext, project: str) -> None:
    spec = {"name": "echo~1f0c9b2e", "engine": "echo"}
    with context.database.write() as session:
        tune = start_job(session, project)
        job = start_job(session, project, models={"echo~1f0c9b2e": spec}, parent_id=tune.id)
    with context.database.read() as session:
        assert running_models(context, session).keys() == {"echo", "echo~1f0c9b2e"}
    with context.database.write() as session:
        lifecycle.transition(session, job.id, "in_progress", "finalizing", outcome="completed")
        lifecycle.transition(session, job.id, "finalizing", "completed")
    with context.database.read() as session:
        assert running_models(context, session).keys() == {"echo"}


def test_a_cells_model_is_the_served_one_under_its_overrides() -> None:
    (base,) = derived.bases({"echo": ECHO}, ["echo"])
    spec = derived.spec_of(cell(**{"engine_args.slots": 8}), base)
    assert spec.name.startswith("echo~") and spec.engine_args["slots"] == 8
    assert spec == derived.spec_of(cell(**{"engine_args.slots": 8}), base), "the same cell is the same model"
    assert derived.spec_of(cell(), base).name != spec.name


def test_an_override_that_the_engine_refuses_is_named() -> None:
    (base,) = derived.bases({"echo": ECHO}, ["echo"])
    with pytest.raises(ConfigurationError, match="slotz"):
        derived.spec_of(cell(**{"engine_args.slotz": 8}), base)


def test_the_size_of_a_model_is_that_of_its_weights_of_one_kind(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(10))
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(7))
    local, remote = derived.bases(
        {
            "local": {"name": "local", "engine": "transformers", "source": str(tmp_path)},
            "remote": {"name": "remote", "engine": "transformers", "source": "org/name"},
        },
        ["local", "remote"],
    )
    assert (local.size, remote.size) == (10, None)


@on_sqlite
def test_a_job_on_a_derived_model_is_checked_with_that_model_beside_the_served_ones(context: AppContext) -> None:
    spec = ModelSpec(name="echo~2", engine="echo")
    assert derived.context_with(context, spec).models.keys() == {"echo", "echo~2"}
    assert "echo~2" not in context.models
