"""The rooms of docs/design.md are those of the tree, none is too large, and imports between them go one way."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.stacks import ROOT

PACKAGES = ("batchyard", "webapp", "tasks", "recipes", "inference", "store")
MAX_MODULES = 20


def packages() -> dict[str, list[Path]]:
    """The modules of each package of the tree, `__init__` left out."""
    folders = [path.parent for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    return {
        str(folder.relative_to(ROOT)): [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        for folder in sorted(set(folders))
    }


def test_the_design_has_a_room_for_each_package_and_no_other() -> None:
    design = (ROOT / "docs/design.md").read_text()
    rooms = re.findall(r"^\| `([\w/]+)` \| [^|]+ \| [^|]+ \|$", design, re.MULTILINE)
    assert sorted(rooms) == sorted(packages())


@pytest.mark.parametrize("package", packages())
def test_a_package_has_at_most_20_modules_and_says_what_lives_there(package: str) -> None:
    assert len(packages()[package]) <= MAX_MODULES
    if package.startswith("store/migrations"):  # Alembic's folders, which are no packages
        return
    assert ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text()))


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
