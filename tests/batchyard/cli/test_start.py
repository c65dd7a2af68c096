"""The start of the command line: `--help` and Tab import nothing that is slow, and Ctrl-C ends it without a word."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rows import until
from tests.support.stacks import ROOT, RunningStack

SERVER = {"alembic", "celery", "flask", "jsonschema", "numpy", "omegaconf", "openai", "orjson", "psutil", "pyarrow"}
SERVER |= {"ray", "redis", "recipes", "sqlalchemy", "tasks", "store", "inference", "yaml"}
HEAVY = {*SERVER, "httpx", "pydantic", "pydantic_settings", "rich"}
HELP = (
    *("--help", "up --help", "run --help", "submit --help", "status --help", "key create --help", "job --help"),
    *(
        "job create --help",
        "schedule create --help",
        "webhook create --help",
        "logs --help",
        "top --help",
        "map --help",
        "results --help",
    ),
    *("rollout --help", "job create panel --help", "config rollout --help"),
)
LOADED = """
import json, os, sys
heavy = set(sys.argv[1].split(","))
from batchyard.cli.__main__ import main
for words, environment in json.loads(sys.argv[2]):
    sys.argv = ["batchyard", *words]
    os.environ.update(environment)
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    modules = {name.partition(".")[0] for name in sys.modules} & heavy
    if code or modules:
        sys.exit(f"{code} {words} {environment} {modules}")
"""


def check_imports(heavy: set[str], folder: Path, *commands: str, **environment: str) -> str:
    """Run commands in one new process, none of which may import a heavy package. Return what they print."""
    return check_imports_with(heavy, folder, [(command.split(), {}) for command in commands], **environment)


def check_imports_with(
    heavy: set[str], folder: Path, commands: list[tuple[list[str], dict[str, str]]], **environment: str
) -> str:
    """Run commands as `check_imports`, each with variables of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
    inherited |= {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", LOADED, ",".join(heavy), json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=inherited | environment,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.fixture(scope="module")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the help of a recipe was shown before."""
    folder = tmp_path_factory.mktemp("remembering")
    check_imports(set(), folder, "rollout --help")
    return folder


@pytest.mark.long
def test_help_imports_nothing_that_is_slow(remembering: Path) -> None:
    assert check_imports(HEAVY, remembering, *HELP).count("Usage:") == len(HELP)


def test_tab_imports_nothing_that_is_slow(remembering: Path) -> None:
    lines = ("batchyard sta", "batchyard submit --wi", "batchyard status batch_", "batchyard rollout --mo")
    commands: list[tuple[list[str], dict[str, str]]] = [
        ([], {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}) for words in lines
    ]
    printed = check_imports_with(HEAVY, remembering, commands, _BATCHYARD_COMPLETE="bash_complete")
    assert {"plain,status", "plain,--window", "plain,--model"} <= set(printed.splitlines())


def test_commands_that_ask_a_server_import_nothing_that_runs_there(stack: RunningStack, tmp_path: Path) -> None:
    check_imports(SERVER, tmp_path, "list", "status", "files", BATCHYARD_URL=stack.url, BATCHYARD_API_KEY=stack.key)


@pytest.mark.long
def test_a_recipe_that_changes_has_its_new_options_in_the_help(tmp_path: Path) -> None:
    from tests.batchyard.cli.recipes.conftest import RECIPE

    (tmp_path / "own").mkdir()
    file = tmp_path / "own/debate.py"
    for option in ("keep_order", "keep_none"):
        file.write_text(RECIPE.replace("keep_order", option))
        # The second command reads what the first has kept.
        printed = check_imports(set(), tmp_path, *["debate --help"] * 2, BATCHYARD_RECIPES=str(tmp_path / "own"))
        assert printed.count(f"--{option.replace('_', '-')} ") == 2


# A module that says that its import has begun, and then takes a while: Ctrl-C comes in the middle of it.
SLOW = """
import pathlib, time
pathlib.Path("begun").touch()
time.sleep(100)
"""


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (["--help"], "click"),
        (["rollout", "rows.jsonl", "--model", "m"], "omegaconf"),
        # As those two: with the command line's own modules, and when a command runs.
        pytest.param(["list"], "httpx", marks=pytest.mark.exhaustive),
        pytest.param(["up"], "psutil", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.long
def test_ctrl_c_during_an_import_ends_a_command_without_a_word(
    arguments: list[str], module: str, tmp_path: Path
) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / f"slow/{module}.py").write_text(SLOW)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "hello"}) + "\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
    environment |= {"PYTHONPATH": f"{tmp_path / 'slow'}:{ROOT}", "BATCHYARD_API_KEY": "by-0-0"}
    with subprocess.Popen(
        [sys.executable, "-m", "batchyard.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment,
    ) as running:
        until(lambda: running.poll() is not None or (tmp_path / "begun").exists())
        running.send_signal(signal.SIGINT)
        printed = running.communicate(timeout=60)
    assert (running.returncode, *(text.strip() for text in printed)) == (130, "", "")


def test_the_package_starts_where_ctrl_c_is_caught() -> None:
    assert 'batchyard = "batchyard.cli.__main__:main"' in (ROOT / "pyproject.toml").read_text()
