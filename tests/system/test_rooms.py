"""The rooms of docs/design.md are those of the tree; packages, functions and names have limits; imports go one way."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stacks import ROOT

PACKAGES = ("batchyard", "webapp", "tasks", "results", "recipes", "inference", "store")
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
    rooms = re.findall(r"^\| `([a-z][\w/]*)` \| [^|]+ \| [^|]+ \|$", design, re.MULTILINE)
    assert sorted(rooms) == sorted(packages())


@pytest.mark.parametrize("package", packages())
def test_a_package_has_3_to_20_modules_and_says_what_lives_there(package: str) -> None:
    if package.startswith("store/migrations"):  # Alembic's folders, which are no packages
        return
    number = len(packages()[package])
    assert MIN_MODULES <= number <= MAX_MODULES
    assert ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text()))


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
    """But commands of the terminal, whose parameters are its flags, and `batchyard.map`, whose are its users'."""
    wide = {name: function for name, function in functions() if _parameters(function) > MAX_PARAMETERS}
    commands = {name for name, function in wide.items() if any(map(_is_command, function.decorator_list))}
    assert wide.keys() - commands - {"batchyard/client/map.py:map"} == set()


def test_every_shared_module_stands_in_the_lowest_layer() -> None:
    """A module that the contract does not name could import anything."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contract = next(contract for contract in settings["contracts"] if contract["id"] == "packages")
    programs = {"cli", "client", "local"}
    shared = {path.stem for path in (ROOT / "batchyard").iterdir() if path.suffix == ".py" and path.stem != "__init__"}
    shared |= {path.parent.name for path in (ROOT / "batchyard").glob("*/__init__.py")} - programs
    assert {name.strip() for name in contract["layers"][-1].split(":")} == {f"batchyard.{name}" for name in shared}


@pytest.mark.parametrize(
    ("planted_in", "line"),
    [
        ("inference/requests/bodies.py", "from store import batches"),
        ("store/files.py", "from tasks import messages"),
        ("store/work/lifecycle.py", "from store import batches"),
        ("tasks/scheduling/policy.py", "from tasks.finishing import finalize"),
        ("inference/engines/openai/client.py", "from inference.engines.vllm import engine"),
        ("recipes/rewards/__init__.py", "from store import files"),
        ("results/rows.py", "from tasks.finishing import finalize"),
        ("results/rows.py", "from recipes import registry"),
        ("batchyard/errors.py", "from batchyard.local import ports"),
        ("webapp/models.py", "from inference.engines import registry"),
    ],
)
def test_a_wrong_import_is_found(planted_in: str, line: str, tmp_path: Path) -> None:
    for name in (*PACKAGES, "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    package, *rest = Path(planted_in).parts
    _copy_of(tmp_path, package)
    file = tmp_path.joinpath(package, *rest)
    file.write_text(file.read_text() + f"\n{line}\n")
    checked = _lint(tmp_path)
    assert checked.returncode == 1, checked.stdout
    assert "BROKEN" in checked.stdout


def test_the_tree_as_it_is_has_no_wrong_import() -> None:
    checked = _lint(ROOT)
    assert checked.returncode == 0, checked.stdout


def _copy_of(folder: Path, package: str) -> None:
    (folder / package).unlink()
    for source in (ROOT / package).rglob("*.py"):
        target = folder / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text())


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-logo", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
