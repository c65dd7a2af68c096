"""Identity of a job: hashes over all that its outcome depends on, and over all that its requests depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from batchyard.recipes import BareOptions, is_judgement


def canonical(value: Any) -> bytes:
    """Return a JSON value as canonical JSON: keys sorted, no blanks, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def judgement_fields(options: type[BareOptions]) -> list[str]:
    """Return the names of the options that only judge answers."""
    return [name for name, field in options.model_fields.items() if is_judgement(field.metadata)]


def hashes(
    schema: type[BareOptions],
    *,
    recipe: str,
    recipe_sha256: str,
    options: Mapping[str, Any],
    seed: int,
    input_sha256: str,
    models: Mapping[str, Any],
    items_sha256: str | None = None,
) -> dict[str, str]:
    """Return `config_sha256`, and `work_sha256`, which is that of the same job without options that only judge.

    Args:
        items_sha256: the items, if they are not all of the input.
    """
    identity = {
        "recipe": recipe,
        "recipe_sha256": recipe_sha256,
        "options": dict(options),
        "seed": seed,
        "input_sha256": input_sha256,
        "models": unpriced(models),
    }
    if items_sha256 is not None:
        identity["items_sha256"] = items_sha256
    return {
        "config_sha256": hashlib.sha256(canonical(identity)).hexdigest(),
        "work_sha256": hashlib.sha256(canonical(identity | {"options": working(schema, options)})).hexdigest(),
    }


def unpriced(models: Mapping[str, Any]) -> dict[str, Any]:
    """Return the models' configurations by name, without prices: nothing that a job does depends on them."""
    return {name: {key: value for key, value in spec.items() if key != "price"} for name, spec in models.items()}


def working(schema: type[BareOptions], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that requests depend on: those that do not only judge."""
    judging = schema.model_construct(**options).judging()  # a recipe may have changed since they were checked
    return {name: value for name, value in options.items() if name not in judging}
