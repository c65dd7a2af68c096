"""A stack on a spot node: what deploy/skypilot/serve.yaml runs exists, and a preemption loses nothing but time."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from batchyard.cli import main
from batchyard.settings import Settings
from store.database import Database
from store.records import Batch
from tests.support.s3 import S3Server
from tests.support.stacks import ROOT, RunningStack, a_chat, on_servers

TASK: dict[str, Any] = yaml.safe_load((ROOT / "deploy/skypilot/serve.yaml").read_text())
MODELS = """
[models.echo]
engine = "echo"
max_in_flight = 8
[models.echo.engine_args]
latency_ms = 200
call_log = "{calls}"
"""


def test_it_sets_what_the_stack_reads_and_starts_what_there_is() -> None:
    aliases = {field.alias for field in Settings.model_fields.values()}
    variables = TASK["envs"].keys() | TASK["secrets"].keys()
    assert {"DATABASE_URL", "ARTIFACTS_URL"} <= variables and {
        name for name in variables if "AWS" not in name
    } <= aliases
    (words,) = re.findall(r"batchyard (.*)", TASK["run"])
    command: Any = main.cli.get_command(click.Context(main.cli), "up")
    flags = re.findall(r"--[\w-]+", words)
    assert words.startswith("up ") and set(flags) <= {flag for one in command.params for flag in one.opts}
    assert f"--port {TASK['resources']['ports']}" in words
    (script, options) = re.findall(r"(deploy/\S+\.py) (.*)", TASK["setup"])[0]
    assert (ROOT / script).is_file() and options == "--vllm yes --extras postgres,s3"


@pytest.mark.local
@pytest.mark.exhaustive
def test_a_preempted_node_costs_its_requests_in_flight_and_nothing_else(
    start_stack: Callable[..., RunningStack], postgresql: str, s3_server: S3Server, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    settings = {"BATCHYARD_ALLOW_SIMULATED": "1", "BATCHYARD_LEASE_SECONDS": "10", **on_servers(postgresql, s3_server)}
    first = start_stack(MODELS.format(calls=calls), **settings)
    batch = first.submit([a_chat(f"r{number}", f"text {number}") for number in range(200)])
    first.wait(batch, until=lambda batch: batch.request_counts.completed >= 60)
    first.kill()
    computed, database = len(calls.read_text().splitlines()), Database(settings["DATABASE_URL"])
    with database.read() as session:
        stored = session.get_one(Batch, batch.id).completed
    database.close()
    data = Path(tempfile.mkdtemp(prefix="by-")) / "data"
    data.mkdir()
    (data.parent / "models.toml").write_text(MODELS.format(calls=calls))
    (data / "admin.key").write_text(first.key)  # for the test's client: the database has a key, so none is made
    second = RunningStack.restart(data, **settings)
    try:
        batch = second.wait(second.client.batches.retrieve(batch.id))
        assert batch.status == "completed" and batch.error_file_id is None, json.dumps(batch.to_dict())
        ids = Counter(line["custom_id"] for line in second.lines(batch.output_file_id))
        assert ids == Counter(f"r{number}" for number in range(200))
        again = len(calls.read_text().splitlines()) - 200
        assert 0 <= again <= computed - stored, "what was stored is not computed again"
    finally:
        second.kill()
        shutil.rmtree(data.parent, ignore_errors=True)
