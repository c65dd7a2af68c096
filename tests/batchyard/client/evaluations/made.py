"""Documents that describe evaluations, and what they become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from batchyard.client import tables
from batchyard.client.evaluations import documents
from batchyard.client.evaluations.evaluation import Evaluation
from recipes import registry


def read(folder: Path, document: Any, name: str = "evaluation.yaml") -> tuple[str, Evaluation, list[dict[str, Any]]]:
    """Write a document to a file and read it. Return its format, the evaluation and the rows."""
    file = folder / name
    file.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    foreign = documents.foreign(file, scratch)
    assert foreign is not None
    return (*foreign, list(tables.rows_of(foreign[1].source)))


def checked(evaluation: Evaluation, **values: Any) -> Any:
    """Return the options that a server makes of an evaluation's, after its checks."""
    recipe = registry.load(None).recipe("evaluate")
    options = recipe.options.model_validate({"model": "mini", **evaluation.options, **values})
    assert recipe.check is not None
    recipe.check(options)
    return options


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
