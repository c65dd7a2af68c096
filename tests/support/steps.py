"""Post-processing steps of a test, as if an installed package added them."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from tasks.steps import registry
from tasks.steps.step import Results, Step, StepOptions


def add_step(monkeypatch: pytest.MonkeyPatch, name: str, run: Callable[[Results, StepOptions], Any]) -> None:
    """Add a step without options of its own, until the test ends."""
    module = types.ModuleType(f"package_{name}")
    module.STEP = Step(name, "of a test.", StepOptions, run)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = EntryPoint(name, f"{module.__name__}:STEP", "batchyard.steps")
    monkeypatch.setitem(registry.STEPS.added, name, entry)
