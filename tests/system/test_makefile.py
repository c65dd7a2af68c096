"""`make check` needs no service; `make test` runs each test once, and records what it took."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.stacks import ROOT

CONFTEST = """
pytest_plugins = ["tests.support.parts", "tests.support.durations", "tests.support.stack_marker"]
"""
SERVICES = """
import subprocess
import sys

import pytest


@pytest.fixture
def broker():
    pytest.fail("it runs")


@pytest.fixture
def redis_url(broker):
    return broker


def test_with_a_fixture_over_a_service(redis_url):
    pass


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_with_a_server_as_parameter(kind):
    assert kind == "file"


@pytest.mark.vllm
def test_with_vllm():
    pytest.fail("it runs")


@pytest.mark.stack
def test_that_says_so():
    pytest.fail("it runs")


@pytest.mark.long
def test_that_takes_long():
    pytest.fail("it runs")


def test_that_starts_a_service_unsaid():
    subprocess.run(["ray", "start"])


def test_without_a_service():
    subprocess.run([sys.executable, "-c", ""], check=True)
"""
MARKERS = ("exhaustive", "local", "long", "stack", "vllm")
GOOD = "def test_good(): pass\n"
PARTS = """
import pytest


@pytest.mark.local
def test_local():
    pass


@pytest.mark.exhaustive
def test_exhaustive():
    pass


def test_any():
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with the Makefile and three tests: one runs on servers, one is of the chaos suite."""
    files = {
        "pytest.ini": f"[pytest]\npythonpath = {ROOT}\naddopts = -ra\nmarkers =\n    " + "\n    ".join(MARKERS),
        "conftest.py": CONFTEST,
        "tests/test_first.py": GOOD,
        "tests/system/test_second.py": GOOD,
        "tests/chaos/test_chaos.py": "def test_chaos(): pass\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def made(target: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a target on the tests of `folder`, without lint and what comes before it."""
    command = ["make", "--silent", "-f", str(ROOT / "Makefile"), "-o", "dev", "-o", "lint", target]
    variables = [
        f"BIN={ROOT / '.venv/bin'}",
        "PARALLEL=",
        "ON_SERVERS=tests/test_first.py",
        "ALSO_ON_SERVERS=tests/system/test_second.py",
    ]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, *variables], cwd=folder, capture_output=True, text=True, env=environment, check=False
    )


def test_a_check_leaves_out_what_needs_a_service_or_takes_long_and_fails_what_starts_one_unsaid(folder: Path) -> None:
    (folder / "tests/test_first.py").write_text(SERVICES)
    (folder / "tests/system/test_second.py").unlink()
    ended = made("check", folder)
    assert ended.returncode != 0
    assert "1 failed, 2 passed, 5 deselected" in ended.stdout
    assert "the test starts ray: mark it with @pytest.mark.stack" in ended.stdout


def test_the_seconds_of_each_test_are_recorded_over_all_parts_and_those_of_an_earlier_run_are_gone(
    folder: Path,
) -> None:
    record = folder / ".pytest_cache/v/durations/tests"
    record.parent.mkdir(parents=True)
    record.write_text('{"tests/test_of_another_run.py::test_old": {}}')
    ended = made("test", folder)
    assert ended.returncode == 0, ended.stdout
    tests = json.loads(record.read_text())
    assert set(tests) == {
        "tests/system/test_second.py::test_good",
        "tests/test_first.py::test_good on servers",
        "tests/chaos/test_chaos.py::test_chaos",
    }
    assert all(set(test) == {"setup", "call", "teardown", "group"} for test in tests.values())


def test_a_test_that_fails_fails_the_target_once_the_other_parts_have_run_and_is_not_tried_again(folder: Path) -> None:
    (folder / "tests/system/test_second.py").write_text(GOOD + "def test_bad(): assert False\n")
    ended = made("test", folder)
    assert ended.returncode != 0
    assert ended.stdout.count("FAILED tests/system/test_second.py::test_bad") == 1
    assert "1 failed, 2 passed" in ended.stdout
    assert ended.stdout.count("test session starts") == 2


@pytest.mark.parametrize(
    ("target", "local", "servers"),
    [
        ("test", ["chaos chaos", "second any", "second local", "first local"], ["first any"]),
        (
            "test-all",
            [
                *("chaos chaos", "first any", "first exhaustive", "first local"),
                *("second any", "second exhaustive", "second local"),
            ],
            ["first any", "first exhaustive", "second any", "second exhaustive"],
        ),
    ],
)
def test_each_test_runs_in_one_part_and_all_of_them_in_test_all(
    folder: Path, target: str, local: list[str], servers: list[str]
) -> None:
    for name in ("tests/test_first.py", "tests/system/test_second.py"):
        (folder / name).write_text(PARTS)
    (folder / "pytest.ini").write_text((folder / "pytest.ini").read_text().replace("-ra", "-rA"))
    ended = made(target, folder)
    assert ended.returncode == 0, ended.stdout
    parts = ended.stdout.split("test session starts")[1:3]
    passed = [sorted(re.findall(r"^PASSED tests/.*test_(\w+)\.py::test_(\w+)$", part, re.M)) for part in parts]
    assert [[" ".join(names) for names in part] for part in passed] == [sorted(local), sorted(servers)]
