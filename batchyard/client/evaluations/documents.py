"""Which format a file that describes an evaluation has, and what it says."""

import json
from pathlib import Path
from typing import Any

from batchyard.client.evaluations import harness_tasks, openai_evals, promptfoo
from batchyard.client.evaluations.evaluation import Evaluation, wrong

FORMATS = {"promptfoo": promptfoo, "lm-evaluation-harness": harness_tasks, "OpenAI": openai_evals}
"""The formats of others by name; each module tells whether a document is one, and reads it."""


def parsed(file: Path) -> dict[str, Any]:
    """Return the mapping in a file of YAML or JSON. A tag `!function` stays as a text that names it."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda _, suffix, node: f"!{suffix} {node.value}")
    try:
        text = file.read_text("utf-8")
        document = json.loads(text) if file.suffix == ".json" else yaml.load(text, Loader)
    except OSError as error:
        raise wrong(file, error.strerror or str(error)) from None
    except (ValueError, yaml.YAMLError) as error:
        raise wrong(file, " ".join(str(error).split())) from None
    if not isinstance(document, dict):
        raise wrong(file, "it holds no mapping of options")
    return document


def foreign(file: Path, folder: Path) -> tuple[str, Evaluation] | None:
    """Return the format's name and the evaluation of a file in someone else's format; None for one of our own."""
    if file.suffix.lower() not in (".yaml", ".yml", ".json"):
        return None
    document = parsed(file)
    readers = ((name, reader) for name, reader in FORMATS.items() if reader.is_one(document))
    return next(((name, reader.read(document, file, folder)) for name, reader in readers), None)
