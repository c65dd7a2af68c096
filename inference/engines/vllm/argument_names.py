"""The names of vLLM's arguments, read from its source: importing vLLM takes seconds, and memory for good."""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path

from inference.engines.vllm.internals import NAMES


@functools.cache
def argument_names(*classes: str) -> frozenset[str] | None:
    """Return the fields of these dataclasses of `internals.NAMES`; None where vLLM is not installed."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    root, names = Path(spec.submodule_search_locations[0]), frozenset[str]()
    for name in classes:
        module, _, attribute = NAMES[name].partition(":")
        names |= _fields(root.joinpath(*module.split(".")[1:]).with_suffix(".py"), attribute)
    return names


def _fields(file: Path, name: str) -> frozenset[str]:
    """Return the fields of a dataclass and of its bases in the same file."""
    classes = {node.name: node for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.ClassDef)}

    def fields(node: ast.ClassDef) -> frozenset[str]:
        inherited = (fields(classes[base.id]) for base in node.bases if isinstance(base, ast.Name))
        annotated = (each for each in node.body if isinstance(each, ast.AnnAssign))
        return frozenset[str]().union(
            *inherited,
            {
                each.target.id
                for each in annotated
                if isinstance(each.target, ast.Name) and "ClassVar" not in ast.unparse(each.annotation)
            },
        )

    return fields(classes[name])
