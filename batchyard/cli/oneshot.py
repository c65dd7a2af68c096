"""Commands that take a file from its first line to its last answer: `run` and `demo`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchyard import wording
from batchyard.cli import background, completion, engine_flags, job_view, jobs, requests, view
from batchyard.cli.options import load_settings, stack_options
from batchyard.cli.output import lines_of, note, plain
from batchyard.cli.watch import check_success, interruptible, watch
from batchyard.client import output_files, resume
from batchyard.client.address import configured_url, server_runs
from batchyard.client.api import ApiClient
from batchyard.errors import ConfigurationError

if TYPE_CHECKING:
    from batchyard.settings import Settings

SAMPLES = 4
SAMPLING = {"temperature": 1.5, "max_tokens": 32}
"""Of the demo's job: so warm that `mini`, which knows its tasks, errs now and then."""


@click.command()
@click.option("-i", "--input", "--input-file", "source", required=True, type=requests.INPUT_FILE, help="Input file.")
@click.option(
    *("-o", "--output", "--output-file", "output"),
    required=True,
    type=requests.OUTPUT_FILE,
    help="File for the answers.",
)
@click.option("--errors", type=click.Path(path_type=Path, dir_okay=False), help="File for the failed requests.")
@click.option(
    "--model",
    shell_complete=completion.models,
    help="Model for all requests: a name of the models file, a folder or a hub id.",
)
@engine_flags.options
@requests.prompt_options
@requests.endpoint_option
@requests.post_process_option
@requests.on_invalid_option
@click.option("--again", is_flag=True, help="Ignore an earlier batch of the same input and recompute.")
@stack_options
def run(
    source: Path,
    output: Path,
    errors: Path | None,
    model: str | None,
    again: bool,
    data: Path | None,
    models: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Answer a file of requests or prompts from start to finish.

    FILE is the same as for `batchyard submit`.

    If no server is running, the command starts a local stack and stops it afterwards. To resume after Ctrl-C or a
    crash, run the same command again: nothing is recomputed, and transient failures are retried.

    Differences from `vllm run-batch`: files are local, failed requests go to --errors, and there are no flags for
    metrics because the server always offers /metrics. Put engine arguments that are not listed here into the models
    file.
    """
    import tempfile

    settings = load_settings(data=data, models=models)
    fields = requests.batch_fields(options, source)
    requests.check_writable(output, errors)
    engine_args = engine_flags.arguments(options)
    prompts = requests.becomes_requests(source, options)
    with (
        interruptible(resume.remedy(again)),
        tempfile.TemporaryDirectory(prefix="batchyard-") as folder,
        _server(settings, Path(folder), model, engine_args) as server,
    ):
        file = source
        if model is not None and not prompts:
            file = Path(folder) / source.name
            requests.with_model(source, model, file)
        form = requests.start_form(fields, {"model": model, **options}) if prompts else None
        *earlier, batch = _batches(server, file, fields, form, again=again)
        note(server.page(batch["id"]))
        batch = watch(server, batch)
        chain = [*earlier, batch]
        if batch["status"] != "failed":  # a refused file has no requests
            _save(server, chain, output, errors)
    from batchyard.client import retries

    counts = retries.counts(chain)
    if as_json:
        click.echo(json.dumps(batch | {"run": {"batches": [one["id"] for one in chain], "request_counts": counts}}))
    elif batch["status"] != "failed":
        simulated = " (simulated)" if any(one["batchyard"]["simulated"] for one in chain) else ""
        answered = f"{counts['completed']} of {counts['total']} requests answered{wording.flaws(counts, ', ')}"
        click.echo(f"{answered}{simulated}: {output}", err=output_files.is_stdout(output))
    check_success(batch, counts)


@click.command()
@click.option("-i", "--input", "source", default="examples/requests.jsonl", show_default=True,
              type=click.Path(path_type=Path, dir_okay=False), help="Requests of the batch.")  # fmt: skip
@click.option("--prompts", default="examples/rollout.jsonl", show_default=True,
              type=click.Path(path_type=Path, dir_okay=False), help="Prompts and answers of the job.")  # fmt: skip
@stack_options
def demo(source: Path, prompts: Path, data: Path | None, models: Path | None, as_json: bool) -> None:
    """Run an example batch and job on a temporary stack.

    The stack keeps its data in DATA/demo. The examples and their models are part of a clone of Batchyard, not of its
    packages.
    """
    if url := configured_url():
        raise ConfigurationError(
            f"BATCHYARD_URL names the server {url}, and the demo runs a stack of its own: unset BATCHYARD_URL"
        )
    settings = load_settings(data=data, models=models)
    for file in (source, prompts, settings.models):
        if not file.is_file():
            raise ConfigurationError(
                f"{file} is not here: run the demo in a clone of Batchyard, which has its files (`make demo`), or name "
                "others with --input, --prompts and --models"
            )
    folder = settings.data / "demo"
    _echo_progress(f"Starting the stack in {folder} …", as_json)
    started = time.monotonic()
    with background.stack(folder, settings.models) as server:
        ready = time.monotonic()
        _echo_progress(f"Ready after {ready - started:.1f} s at {server.url}. Submitting {source}.", as_json)
        batch = server.create(
            server.upload(source), endpoint=requests.endpoint_of(source), post_process=[{"step": "score"}]
        )
        batch = watch(server, batch)
        seconds = time.monotonic() - ready
        artifacts = {artifact["name"]: artifact for artifact in batch["batchyard"]["artifacts"]}
        scores = None
        if "score-summary.json" in artifacts:
            scores = json.loads(server.content(artifacts["score-summary.json"]["file_id"]))
        output = folder / "output.jsonl"
        requests.save(server, batch["output_file_id"], output)
        if not as_json:
            _report(batch, scores, seconds, output)
        check_success(batch)
        _echo_progress(f"\nSampling {SAMPLES} answers to each prompt of {prompts}.", as_json)
        options = {
            "model": batch["model"],
            "n": SAMPLES,
            "sampling": SAMPLING,
            "reward": "exact",
            "ground_truth": "answer",
        }
        job = server.create_job(recipe="rollout", options=options, input_file_id=server.upload(prompts, "user_data"))
        job = watch(server, job)
        rollouts = folder / "rollouts.parquet"
        written = jobs.save(server, job, rollouts.name, rollouts, None)
    if as_json:
        report = {"batch": batch, "scores": scores, "seconds": seconds, "output": str(output), "job": job}
        click.echo(json.dumps(report))
    else:
        click.echo(plain(job_view.summary(job)))
        for path in written:
            click.echo(f"Samples:   {path}")
    check_success(job)


def _batches(
    server: ApiClient, file: Path, fields: dict[str, Any], form: Mapping[str, str] | None, *, again: bool
) -> list[dict[str, Any]]:
    """Return the batch that the same command has made before with its retries, or a new one."""
    from batchyard.client import retries

    on_invalid = fields["on_invalid"]
    identity = [file.name, form] if form else [on_invalid] if on_invalid != "fail" else []
    mark = resume.mark(server, resume.sha256(file), fields["endpoint"], fields["post_process"], *identity)
    earlier = None if again else resume.Earlier(server.batches(), ("failed",)).find(mark, None)
    chain = None if earlier is None else retries.take_up(server, earlier)
    if chain is not None:
        return chain
    if form:
        return [requests.started(server, file, {**form, "metadata": json.dumps(mark)})]
    return [requests.created(server, file, {**fields, "metadata": mark})]


def _save(server: ApiClient, chain: list[dict[str, Any]], output: Path, errors: Path | None) -> None:
    """Write the answers of a batch with those of its retries, and what has none."""
    if len(chain) == 1:
        requests.save(server, chain[0]["output_file_id"], output)
        if errors is not None:
            requests.save(server, chain[0]["error_file_id"], errors)
        return
    from batchyard.client import retries

    try:
        retries.write(server, chain, output, errors)
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}; name a file that can be written") from error


@contextmanager
def _server(settings: Settings, folder: Path, model: str | None, engine_args: Mapping[str, Any]) -> Iterator[ApiClient]:
    """Yield a client of a server of `model`: a running one, or a local stack."""
    from batchyard import plugins

    runs = server_runs(settings.data)
    if not runs:
        plugins.require_server()
    models_file = settings.models
    is_listed = runs
    if model is not None and not runs and models_file.exists():
        from batchyard.models import served_by_name
        from inference import catalog

        is_listed = model in served_by_name(catalog.load(models_file, allow_simulated=settings.allow_simulated))
    if model is not None and not is_listed:
        models_file = engine_flags.models_file(folder, model, engine_args)
    elif engine_args:
        authority = "the server that runs" if runs else str(settings.models)
        raise click.UsageError(
            f"{engine_flags.written(engine_args)}: {authority} says how its models are started; "
            "engine arguments go with a --model of your own, a folder or a hub id"
        )
    with background.server(settings.data, models_file) as server:
        served = [entry["id"] for entry in server.models()]
        if model is not None and model not in served:
            remedy = f"{wording.NEWER}; it serves" if server.knows_too_late(model) else "it serves"
            raise ConfigurationError(f"{server.url} does not serve {model}; {remedy} {', '.join(sorted(served))}")
        yield server


def _echo_progress(text: str, as_json: bool) -> None:
    click.echo(text, err=as_json)


def _report(batch: dict[str, Any], scores: Any, seconds: float, output: Path) -> None:
    if scores:
        rows = [
            [name, task["correct"], task["total"], f"{task['accuracy']:.1%}"] for name, task in scores["tasks"].items()
        ]
        rows.append(["all", scores["correct"], scores["total"], f"{scores['accuracy']:.1%}"])
        click.echo(lines_of(["task", "correct", "of", "accuracy"], rows) + "\n")
    engines = ", ".join(f"{model} on engine {engine}" for model, engine in batch["batchyard"]["models"].items())
    tokens = f"{batch['usage']['input_tokens']}, {batch['usage']['output_tokens']}"
    times = f"{seconds:.1f} s from upload to last step"
    facts = [("ran", engines), ("took", times), ("tokens in, out", tokens), ("answers", output)]
    click.echo(f"{view.progress(batch)}\n{lines_of(['', ''], facts)}")
