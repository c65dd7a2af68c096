"""A deployment has the recipes that its settings name."""

from __future__ import annotations

from collections.abc import Callable

from jobs.catalogue import catalogue_of
from tasks.context import AppContext
from tests.support.stacks import ROOT


def test_the_context_of_a_process_has_the_folder(new_context: Callable[..., AppContext]) -> None:
    folder = str(ROOT / "examples/recipes")
    assert "debate" in catalogue_of(new_context(recipes=folder)).recipes
    assert "debate" not in catalogue_of(new_context()).recipes
