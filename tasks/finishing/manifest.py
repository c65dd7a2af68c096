"""The manifest: an artifact that names a batch's input, models, engines, outputs and counts."""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from batchyard import __version__, latency, signatures
from batchyard.models import ModelSpec
from store import batches, segments
from store.accounting import usage
from store.records import AMOUNTS, Batch, File
from store.work import lifecycle

NAME = signatures.MANIFEST


def build(session: Session, batch: Batch, status: str) -> bytes:
    """Return the manifest of a batch that ends with `status`, as JSON, always the same bytes."""
    engines = segments.engines(session, batch.id)
    artifacts = batches.artifacts(session, [batch.id])[batch.id]
    source = session.get(File, batch.input_file_id)
    cost = usage.costs(session, [batch.id]).get(batch.id)
    deaths = batch.engine_deaths or {}
    measured = latency.summary(batch.latencies)
    document = {
        "batch_id": batch.id,
        "status": status,
        "simulated": batch.simulated,
        "batchyard_version": __version__,
        "endpoint": batch.endpoint,
        "input": {
            "file_id": batch.input_file_id,
            "sha256": batch.input_sha256,
            "bytes": source.bytes if source else None,
            "plan_sha256": batch.plan_sha256,
        },
        "models": {
            name: {
                "config": config,
                "config_sha256": ModelSpec.model_validate(config).config_sha256,
                "engines": engines.get(name, []),
                "engine_deaths": deaths.get(name, {}).get("deaths", 0),
                "engine_death_reasons": deaths.get(name, {}).get("reasons", {}),
            }
            for name, config in sorted(batch.models.items())
        },
        "outputs": [
            {"name": artifact.name, "sha256": file.sha256, "bytes": file.bytes, "lines": artifact.lines}
            for artifact, file in artifacts
            if artifact.name not in (NAME, signatures.ENVELOPE)
        ],
        signatures.EARLIER: lifecycle.named_files(session, [batch.retry_of], NAME),
        "post_process": batch.post_process,
        "counts": {name: getattr(batch, name) for name in ("total", "completed", "failed", "expired", "cancelled")},
        "usage": {name: getattr(batch, name) for name in AMOUNTS if name not in ("completed", "failed")},
        "cost": cost and cost.document,
        "latency": measured and measured.model_dump(),
        "timings": {
            name: getattr(batch, name)
            for name in ("created_at", "in_progress_at", "finalizing_at", "cancelling_at", "expires_at")
        },
    }
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the settings, weights and versions that differ between two manifests, of each model that both have."""
    found = []
    for model in sorted(before["models"].keys() & after["models"].keys()):
        then, now = before["models"][model], after["models"][model]
        for key in sorted(then["config"].keys() | now["config"].keys()):
            if then["config"].get(key) != now["config"].get(key):
                found.append(f"{model}: {key} is {now['config'].get(key)!r}, and was {then['config'].get(key)!r}")
        for key in sorted({key for one in (*then["engines"], *now["engines"]) for key in one}):
            values = [sorted({str(one.get(key)) for one in side["engines"]}) for side in (then, now)]
            if values[0] != values[1] and all(values):
                found.append(f"{model}: {key} is {', '.join(values[1])}, and was {', '.join(values[0])}")
    return found
