"""Fixtures of this folder: deployments with a recipe in a file, and the end of contexts that tests have opened."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs import messages
from jobs.intake import author_calls
from jobs.kinds.flow import FLOW
from jobs.running import rebuild
from jobs.running.segments import SegmentCutter
from tasks import messages as batch_messages
from tasks.context import AppContext
from tests.support.running_jobs import HEAD
from tests.support.webapps import close_contexts, context_in


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message leaves the test, and a starving job waits for nothing."""
    for module, name in ((messages, "advance"), (messages, "finish"), (batch_messages, "segment")):
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(rebuild, "SegmentCutter", functools.partial(SegmentCutter, pause=0.0))


@pytest.fixture
def deployed(alone: None, new_context: Callable[..., AppContext], tmp_path: Path) -> Callable[[str], AppContext]:
    """Makes a context whose folder of recipes has this file."""

    def make(text: str) -> AppContext:
        folder = tmp_path / f"recipes-{len(list(tmp_path.glob('recipes-*')))}"
        folder.mkdir()
        (folder / "two.py").write_text(HEAD + text)
        return new_context(recipes=str(folder))

    return make


@pytest.fixture(scope="module")
def lasting(recipes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], AppContext]]:
    """As `deployed`, for all tests of a module: the processes of authors' calls take seconds to start."""

    def make(text: str) -> AppContext:
        folder = tmp_path_factory.mktemp("lasting")
        (folder / "recipes").mkdir()
        (folder / "recipes/odd.py").write_text(text)
        return context_in(folder, recipes=str(folder / "recipes"))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(author_calls, "SECONDS", 600.0)
        yield make
    close_contexts(recipes)


@pytest.fixture(autouse=True)
def _closed_contexts(request: pytest.FixtureRequest, recipes: Path) -> Iterator[None]:
    """Close what a test has opened, and forget its jobs: their tools are those of its folder."""
    yield
    FLOW.jobs.clear()
    if "lasting" not in request.fixturenames:
        close_contexts(recipes)
