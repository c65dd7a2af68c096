"""The artifacts of an ended job: its results, metrics and configuration, those of its steps, and the manifest."""

import logging
import time
from collections.abc import Mapping
from typing import Any

import orjson

from batchyard import __version__, json_lines, signatures
from batchyard.errors import LeaseLost, UnavailableError
from batchyard.recipes import Report, blocks
from batchyard.statuses import NEVER_ENDED
from batchyard.telemetry import spans
from jobs.catalogue import catalogue_of
from jobs.finishing.results import JobResults, StepResults
from jobs.intake import identity
from store.accounting import usage as accounts
from store.artifacts import Artifacts
from store.jobs import reading as job_records
from store.records import Job
from store.work import traces
from store.work.lifecycle import named_files
from tasks.context import AppContext
from tasks.finishing.finalize import STEP_SECONDS
from tasks.steps import registry

log = logging.getLogger(__name__)

RESULTS = "results.jsonl"
_IDENTITY = (
    *("recipe", "recipe_sha256", "config_sha256", "work_sha256", "input_sha256", "items_sha256"),
    *("options", "seed", "models", "simulated", "amendments"),
)


def report_of(context: AppContext, job: Job, results: JobResults) -> Report:
    """Return what the finish hook reports, or nothing if it fails."""
    try:
        recipe = catalogue_of(context).recipe(job.recipe)
        report = Report()
        if recipe.finish is not None:
            report = recipe.finish(results, recipe.options.model_validate(job.options))
        json_lines.dumps(
            [report.metrics, blocks.as_json(report.view), report.warnings], option=orjson.OPT_SERIALIZE_NUMPY
        )
    except (LeaseLost, UnavailableError):
        raise
    except Exception as error:
        log.exception("report failed", extra={"job_id": job.id, "recipe": job.recipe})
        results.status = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        return Report()
    return report


def write_common(results: JobResults, job: Job, report: Report) -> None:
    if job.total:
        with results.create(RESULTS) as file:
            for item in results.items():
                names = ("custom_id", "number", "state", "result", "error")
                file.write(json_lines.line({name: getattr(item, name) for name in names}))
    written = {
        "metrics.json": report.metrics,
        "view.json": blocks.as_json(report.view),
        "config.json": identity.configuration(job),
    }
    _write(results, {name: _json(value) for name, value in written.items()})


def run_step(artifacts: Artifacts, results: JobResults, job: Job, entry: dict[str, Any]) -> dict[str, Any]:
    """Run a post-processing step. Return its entry with its outcome. Raises UnavailableError after STEP_SECONDS."""
    try:
        with spans.span(f"step {entry['step']}", traces.place(job)):
            return entry | registry.run(entry, StepResults(artifacts, results))
    except LeaseLost:
        raise
    except Exception as error:
        if isinstance(error, UnavailableError) and time.time() < (job.finalizing_at or 0) + STEP_SECONDS:
            raise
        log.exception("step failed", extra={"job_id": job.id, "step": entry["step"]})
        return entry | {"status": "failed", "error": f"{type(error).__name__}: {error}"}


def write_manifest(context: AppContext, results: JobResults, job: Job, outcome: str) -> list[tuple[str, str]]:
    """Write the manifest, signed if the deployment has a key. Return warnings for people, as those of a report."""
    with context.database.read() as session:
        usage = job_records.usage(session, [job.id])[job.id]
        cost = accounts.job_costs(session, [job.id]).get(job.id)
        deaths = job_records.engine_deaths(session, job.id)
        batch_ids = [stage.batch_id for stage, _ in job_records.stage_batches(session, [job.id])[job.id]]
        children = job_records.children(session, [job.id])[job.id]
        sources = [job.retry_of, job.answers_from, *batch_ids, *children]
        earlier = named_files(session, sources, signatures.MANIFEST)
    files = {name: {"sha256": sha256, "bytes": size} for name, (sha256, size, _) in sorted(results.artifacts.items())}
    manifest = {
        "job": job.id,
        **{name: getattr(job, name) for name in _IDENTITY},
        "batchyard": __version__,
        "request_counts": {
            **{name: getattr(job, name) for name in ("total", "completed", "failed", "stuck")},
            **dict.fromkeys(("expired", "cancelled"), 0),
            **{NEVER_ENDED[outcome]: job.unended},
        },
        "usage": {f"{name}_tokens": tokens for name, tokens in usage._asdict().items()},
        "cost": cost and cost.document,
        "engine_deaths": deaths,
        "created_at": job.created_at,
        "started_at": job.in_progress_at,
        "ended_at": job.finalizing_at or job.cancelling_at,
        signatures.EARLIER: earlier,
        "artifacts": files,
    }
    written = signatures.signed(context.settings.signing_key, _json(manifest))
    _write(results, written)
    unsigned = json_lines.loads(written[signatures.MANIFEST]).get(signatures.UNSIGNED)
    return [("manifest_unsigned", f"The manifest is not signed: {unsigned}")] if unsigned else []


def _json(value: Any) -> bytes:
    return json_lines.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2) + b"\n"


def _write(results: JobResults, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        with results.create(name) as file:
            file.write(content)
