"""The recipes that `--help` shows are those of the local stack, and remembered until a file of theirs changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchyard.cli.recipes import catalogue

RECIPE = '''
from batchyard.recipes import Ask, Flow, Item, Options, Result, recipe

@recipe("{name}", Options, stages=("a",))
def mine(item: Item, options: Options) -> Flow:
    """{summary}"""
    (answer,) = yield [Ask("a", item.chat(), model="echo")]
    return Result(text=answer.text)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of recipes of a user whose cache is empty; no server runs."""
    (tmp_path / "recipes").mkdir()
    write(tmp_path / "recipes", "Say it once.")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATCHYARD_URL", raising=False)
    monkeypatch.setenv("BATCHYARD_RECIPES", str(tmp_path / "recipes"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "recipes"


def write(folder: Path, summary: str, name: str = "mine") -> None:
    (folder / "mine.py").write_text(RECIPE.format(name=name, summary=summary))


def summaries(data: Path) -> dict[str, str]:
    return {recipe["name"]: recipe["summary"] for recipe in catalogue.glance(data)}


def memory(folder: Path) -> Path:
    return folder.parent / "cache/batchyard/recipes.json"


def test_built_in_recipes_and_the_users_are_there_with_their_options(folder: Path) -> None:
    recipes = {recipe["name"]: recipe for recipe in catalogue.recipes(folder.parent / "data")}
    assert {"rollout", "panel", "refine", "mine"} <= recipes.keys()
    assert recipes["mine"]["summary"] == "Say it once." and len(recipes["mine"]["sha256"]) == 64
    assert "properties" in recipes["rollout"]["options"]


def test_what_is_remembered_is_read_instead_of_importing_recipes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = folder.parent / "data"
    first = catalogue.glance(data)
    monkeypatch.setattr(catalogue, "recipes", lambda _: pytest.fail("recipes were imported again"))
    assert catalogue.glance(data) == first


def test_recipes_are_imported_again_once_a_file_of_theirs_has_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = folder.parent / "data"
    catalogue.glance(data)
    monkeypatch.setattr(catalogue, "recipes", lambda _: [{"name": "new"}])
    write(folder, "Say it twice, then.")
    assert catalogue.glance(data) == [{"name": "new"}]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"files": 1}', b"\xff", b"null"])
def test_a_memory_that_is_damaged_is_written_anew(folder: Path, content: bytes) -> None:
    memory(folder).parent.mkdir(parents=True)
    memory(folder).write_bytes(content)
    assert "mine" in summaries(folder.parent / "data")
    assert "mine" in [recipe["name"] for recipe in json.loads(memory(folder).read_text())["recipes"]]


def test_a_cache_that_cannot_be_written_is_no_error(folder: Path) -> None:
    (folder.parent / "cache").write_text("a file where the folder would be")
    assert "mine" in summaries(folder.parent / "data")
