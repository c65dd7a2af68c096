"""The manifest: an artifact that names a batch's input, models, engines, outputs and counts."""

import json

from sqlalchemy.orm import Session

from batchyard import __version__, latency
from batchyard.models import ModelSpec
from store import batches, segments
from store.accounting import usage
from store.records import AMOUNTS, Batch, File

NAME = "manifest.json"


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
            if artifact.name != NAME
        ],
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
