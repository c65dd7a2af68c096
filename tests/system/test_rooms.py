"""The rooms of docs/design.md are those of the tree; packages, functions and names have limits; imports go one way."""

from __future__ import annotations

import ast
import functools
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stacks import ROOT

PACKAGES = ("batchyard", "jobs", "webapp", "tasks", "results", "recipes", "inference", "store")
MIN_MODULES, MAX_MODULES = 3, 20
MAX_LINES, MAX_PARAMETERS = 80, 12

Function = ast.FunctionDef | ast.AsyncFunctionDef


def packages() -> dict[str, list[Path]]:
    """The modules of each package of the tree, `__init__` left out."""
    folders = [path.parent for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    return {
        str(folder.relative_to(ROOT)): [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        for folder in sorted(set(folders))
    }


@functools.cache
def nodes() -> list[tuple[str, Function | ast.ClassDef]]:
    """The functions and classes of each module but migrations, with its path."""
    paths = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py") if "migrations" not in path.parts]
    return [
        (str(path.relative_to(ROOT)), node)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, Function | ast.ClassDef)
    ]


def functions() -> Iterator[tuple[str, Function]]:
    """Yield each function and method with its name, such as `store/batches.py:create`."""
    return ((f"{path}:{node.name}", node) for path, node in nodes() if isinstance(node, Function))


def _length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _parameters(function: Function) -> int:
    arguments = function.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)


def _is_command(decorator: ast.expr) -> bool:
    """True for `@click.command()` and `@group.command("name")`."""
    return ast.unparse(decorator).partition("(")[0].endswith(".command")


def test_the_design_has_a_room_for_each_package_and_no_other() -> None:
    design = (ROOT / "docs/design.md").read_text()
    rooms = re.findall(r"^\* `([a-z][\w/]*)`: .+$", design, re.MULTILINE)
    assert sorted(rooms) == sorted(packages())


@pytest.mark.parametrize("package", packages())
def test_a_package_has_3_to_20_modules_and_says_what_lives_there(package: str) -> None:
    if package.startswith("store/migrations"):  # Alembic's folders, which are no packages
        return
    number = len(packages()[package])
    assert MIN_MODULES <= number <= MAX_MODULES
    assert ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text()))


@pytest.mark.long
def test_a_class_name_means_one_thing_or_the_design_says_why_it_means_two() -> None:
    modules = defaultdict[str, set[str]](set)
    for path, node in nodes():
        if isinstance(node, ast.ClassDef):
            modules[node.name].add(path)
    double = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}
    _, _, section = (ROOT / "docs/design.md").read_text().partition("| name | means | why it stays |\n")
    explained = set(re.findall(r"^\| `(\w+)` \|", section.partition("\n\n")[0], re.MULTILINE))
    assert double.keys() == explained, {name: double.get(name) for name in double.keys() ^ explained}


def test_no_function_is_longer_than_80_lines() -> None:
    long = {name for name, function in functions() if _length(function) > MAX_LINES}
    assert long == set()


def test_no_function_has_more_than_12_parameters() -> None:
    """But commands of the terminal, whose parameters are its flags, and functions of `batchyard` for Python."""
    wide = {name: function for name, function in functions() if _parameters(function) > MAX_PARAMETERS}
    commands = {name for name, function in wide.items() if any(map(_is_command, function.decorator_list))}
    names = ("map.py:map", "map.py:plan", "filter.py:filter", "match.py:match", "classify.py:classify")
    python = {f"batchyard/client/{name}" for name in names}
    assert wide.keys() - commands - python == set()


def test_every_shared_module_stands_in_the_lowest_layer() -> None:
    """A module that the contract does not name could import anything."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contract = next(contract for contract in settings["contracts"] if contract["id"] == "packages")
    programs = {"cli", "client", "local"}
    shared = {path.stem for path in (ROOT / "batchyard").iterdir() if path.suffix == ".py" and path.stem != "__init__"}
    shared |= {path.parent.name for path in (ROOT / "batchyard").glob("*/__init__.py")} - programs
    assert {name.strip() for name in contract["layers"][-1].split(":")} == {f"batchyard.{name}" for name in shared}


WRONG = [
    ("inference.requests.media", "store.batches"),
    ("store.files", "tasks.messages"),
    ("store.work.lifecycle", "store.batches"),
    ("tasks.scheduling.policy", "tasks.finishing.finalize"),
    ("tasks.advance", "jobs.finish"),
    ("webapp.models", "recipes.registry"),
    ("inference.engines.openai.client", "inference.engines.vllm.engine"),
    ("recipes.rewards", "store.files"),
    ("results.rows", "tasks.finishing.finalize"),
    ("results.rows", "recipes.registry"),
    ("batchyard.errors", "batchyard.local.ports"),
    ("webapp.models", "inference.engines.registry"),
    ("batchyard.client.classify", "inference.catalog"),
]
"""Imports that go up or sideways: of a module, and what it imports."""


@pytest.fixture(scope="module")
def lint_of_wrong_imports(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What import-linter says of a copy of the tree in which each of WRONG is planted."""
    folder = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "static"))
    for importer, imported in WRONG:
        module = folder / importer.replace(".", "/")
        file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
        package, _, name = imported.rpartition(".")
        file.write_text(f"{file.read_text()}\nfrom {package} import {name}\n")
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-logo", "--no-cache"]
    checked = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert checked.returncode == 1, checked.stdout
    return re.sub(r"\s+", " ", checked.stdout)


@pytest.mark.parametrize(("importer", "imported"), WRONG)
def test_a_wrong_import_is_found(importer: str, imported: str, lint_of_wrong_imports: str) -> None:
    assert f"- {importer} -> {imported} (l." in lint_of_wrong_imports
