"""Commands that take a file from its first line to its last answer: `run` and `demo`."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from batchyard import background, client
from batchyard.client import Client
from batchyard.commands import requests
from batchyard.commands.options import data_option, load_settings, models_option
from batchyard.commands.output import json_option, table
from batchyard.commands.watch import finished, watch
from batchyard.models import vllm_installed
from batchyard.settings import Settings

# The key under which `run` marks its batches, so that the same run finds its batch again.
RUN_KEY = "batchyard.run"
_GONE = ("failed", "expired", "cancelling", "cancelled")


@click.command()
@click.option("-i", "--input", "source", required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where the answers go.")
@click.option("--errors", type=click.Path(path_type=Path), help="Where the failed requests' lines go.")
@click.option("--model", help="Run every request on this model, whatever its line names.")
@requests.endpoint_option
@requests.post_process_option
@click.option("--again", is_flag=True, help="Make a new batch also where one of the same input exists.")
@data_option
@models_option
@json_option
def run(
    source: Path,
    output: Path,
    errors: Path | None,
    model: str | None,
    endpoint: str | None,
    post_process: tuple[str, ...],
    again: bool,
    data: Path | None,
    models: Path | None,
    as_json: bool,
) -> None:
    """Answer a file of requests in one go.

    Starts a local stack and ends it afterwards, unless one runs on --data already or BATCHYARD_URL names a server.
    The same command again takes up the batch of the first: nothing that was answered is computed twice.
    """
    settings = load_settings(data=data, models=models)
    steps = requests.steps(post_process)
    with tempfile.TemporaryDirectory(prefix="batchyard-") as folder, _server(settings) as server:
        file = source
        if model is not None:
            file = Path(folder) / source.name
            requests.with_model(source, model, file)
        where = endpoint or requests.endpoint_of(file)
        mark = _mark(server, file, where, steps)
        batch = None if again else _earlier(server, mark)
        if batch is None:
            batch = server.create(server.upload(file), endpoint=where, metadata={RUN_KEY: mark}, post_process=steps)
        else:
            click.echo(f"taking up batch {batch['id']} ({batch['status']}); --again makes a new one", err=True)
        batch = watch(server, batch["id"])
        requests.save(server, batch["output_file_id"], output)
        if errors is not None:
            requests.save(server, batch["error_file_id"], errors)
    if as_json:
        click.echo(json.dumps(batch))
    else:
        counts = batch["request_counts"]
        simulated = " (simulated)" if batch["batchyard"]["simulated"] else ""
        click.echo(f"{counts['completed']} of {counts['total']} requests answered{simulated}: {output}")
    finished(batch)


@click.command()
@click.option("-i", "--input", "source", default="examples/requests.jsonl", show_default=True,
              type=click.Path(path_type=Path, exists=True, dir_okay=False))  # fmt: skip
@data_option
@models_option
@json_option
def demo(source: Path, data: Path | None, models: Path | None, as_json: bool) -> None:
    """Run the example file through a stack of its own (in DATA/demo) and score the answers."""
    settings = load_settings(data=data, models=models)
    folder = settings.data / "demo"
    _tell(f"Starting the stack in {folder} …", as_json)
    begun = time.monotonic()
    with background.stack(folder, settings.models) as server:
        ready = time.monotonic()
        _tell(f"Ready after {ready - begun:.1f} s at {server.url}. Submitting {source}.", as_json)
        batch = server.create(
            server.upload(source), endpoint=requests.endpoint_of(source), post_process=[{"step": "score"}]
        )
        batch = watch(server, batch["id"])
        seconds = time.monotonic() - ready
        artifacts = {artifact["name"]: artifact for artifact in batch["batchyard"]["artifacts"]}
        scores = None
        if "score-summary.json" in artifacts:
            scores = json.loads(server.content(artifacts["score-summary.json"]["file_id"]))
        output = folder / "output.jsonl"
        requests.save(server, batch["output_file_id"], output)
    if as_json:
        click.echo(json.dumps({"batch": batch, "scores": scores, "seconds": seconds, "output": str(output)}))
    else:
        _report(batch, scores, seconds, output, folder)
    finished(batch)


def _server(settings: Settings) -> AbstractContextManager[Client]:
    if client.configured_url():
        return nullcontext(client.connect(settings.data))
    return background.stack(settings.data, settings.models)


def _mark(server: Client, file: Path, endpoint: str, steps: list[dict[str, str]]) -> str:
    """What makes two runs the same: their requests, what is done with them, and the models as they are served."""
    parts = [requests.sha256(file), endpoint, steps, server.models()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _earlier(server: Client, mark: str) -> dict[str, Any] | None:
    for batch in server.batches():
        if (batch["metadata"] or {}).get(RUN_KEY) == mark and batch["status"] not in _GONE:
            return batch
    return None


def _tell(text: str, as_json: bool) -> None:
    click.echo(text, err=as_json)


def _report(batch: dict[str, Any], scores: Any, seconds: float, output: Path, folder: Path) -> None:
    counts, usage, ours = batch["request_counts"], batch["usage"], batch["batchyard"]
    if scores:
        rows = [
            [name, task["correct"], task["total"], f"{task['accuracy']:.1%}"] for name, task in scores["tasks"].items()
        ]
        rows.append(["all", scores["correct"], scores["total"], f"{scores['accuracy']:.1%}"])
        table(["task", "correct", "of", "accuracy"], rows)
    click.echo(
        f"{counts['completed']} of {counts['total']} requests answered, {counts['failed']} failed, in {seconds:.1f} s "
        f"(upload to last step): {usage['input_tokens']} tokens in, {usage['output_tokens']} out"
    )
    for model, engine in sorted(ours["models"].items()):
        click.echo(f"Model {model} ran on engine {engine}: {_why(engine)}")
    click.echo(f"Answers:   {output}")
    click.echo(f"Artifacts: {folder / 'artifacts'}")
    for artifact in ours["artifacts"]:
        click.echo(f"  {artifact['name']:20} {artifact['bytes']:>9} bytes  sha256 {artifact['sha256']}")


def _why(engine: str) -> str:
    if engine == "echo":
        return "its answers are simulated"
    if engine == "vllm":
        return "vLLM is installed"
    return "models.toml names it" if vllm_installed() else "vLLM is not installed here (`make install` says why)"
