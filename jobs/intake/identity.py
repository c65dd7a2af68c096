"""Identity of a job: hashes over what its outcome and its requests depend on."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from batchyard.recipes import BareOptions, is_judgement
from store.records import Job


def canonical(value: Any) -> bytes:
    """Return a JSON value as canonical JSON: keys sorted, no blanks, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def judgement_fields(options: type[BareOptions]) -> list[str]:
    return [name for name, field in options.model_fields.items() if is_judgement(field.metadata)]


def configuration(job: Job) -> dict[str, Any]:
    return {
        **{name: getattr(job, name) for name in ("recipe", "recipe_sha256", "options", "seed", "input_sha256")},
        **({"items_sha256": job.items_sha256} if job.retry_of else {}),  # else they are all of the input
        "models": unpriced(job.models),
    }


def hashes(schema: type[BareOptions], configuration: Mapping[str, Any]) -> dict[str, str]:
    """Return `config_sha256`, and `work_sha256` without options that only judge."""
    work = {**configuration, "options": working(schema, configuration["options"])}
    return {
        "config_sha256": hashlib.sha256(canonical(configuration)).hexdigest(),
        "work_sha256": hashlib.sha256(canonical(work)).hexdigest(),
    }


def unpriced(models: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {key: value for key, value in spec.items() if key != "price"} for name, spec in models.items()}


def working(schema: type[BareOptions], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that requests depend on."""
    judging = schema.model_construct(**options).judging()  # a recipe may have changed since they were checked
    return {name: value for name, value in options.items() if name not in judging}
