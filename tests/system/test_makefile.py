"""`make check` runs what needs no service; `make test` tries failures again, and ends with those that passed then."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.stacks import ROOT

CONFTEST = """
import os
from pathlib import Path

pytest_plugins = ["tests.support.second_tries", "tests.support.stack_marker"]


def pytest_addoption(parser):
    parser.addoption("--backends", default="local")


def pytest_runtest_setup(item):
    '''Each test fails in its first run of each part; test_never in all.'''
    part = item.config.getoption("backends")
    mark = Path(f"{item.name}-{part}")
    late = not mark.exists()
    mark.touch()
    assert not ("late" in item.name and late) and "never" not in item.name
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
GOOD = "def test_good(): pass\ndef test_late(): pass\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with the Makefile and three tests, one of which is of the chaos suite."""
    files = {
        "pytest.ini": f"[pytest]\npythonpath = {ROOT}\naddopts = -ra\nmarkers =\n    stack\n    long\n    vllm\n",
        "conftest.py": CONFTEST,
        "tests/test_first.py": GOOD,
        "tests/chaos/test_chaos.py": "def test_chaos_late(): pass\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def made(target: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a target on the tests of `folder`, without lint and what comes before it."""
    command = ["make", "--silent", "-f", str(ROOT / "Makefile"), "-o", "dev", "-o", "lint", target]
    variables = [f"BIN={ROOT / '.venv/bin'}", "PARALLEL=", "ON_SERVERS=tests/test_first.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, *variables], cwd=folder, capture_output=True, text=True, env=environment, check=False
    )


def test_a_check_leaves_out_what_needs_a_service_or_takes_long_and_fails_what_starts_one_unsaid(folder: Path) -> None:
    (folder / "tests/test_first.py").write_text(SERVICES)
    ended = made("check", folder)
    assert ended.returncode != 0
    assert "1 failed, 2 passed, 5 deselected" in ended.stdout
    assert "the test starts ray: mark it with @pytest.mark.stack" in ended.stdout


def test_the_tests_that_pass_at_their_second_try_are_listed_at_the_end_over_all_parts(folder: Path) -> None:
    (folder / ".pytest_cache").mkdir()
    (folder / ".pytest_cache/second-tries.txt").write_text("tests/test_of_another_run.py::test_late\n")
    ended = made("test", folder)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.splitlines()[-4:] == [
        "Passed only at the second try:",
        "tests/test_first.py::test_late",
        "tests/test_first.py::test_late --backends servers",
        "tests/chaos/test_chaos.py::test_chaos_late",
    ]


def test_a_test_that_fails_twice_fails_the_target(folder: Path) -> None:
    (folder / "tests/test_first.py").write_text(GOOD + "def test_never(): pass\n")
    ended = made("test", folder)
    assert ended.returncode != 0
    assert ended.stdout.count("ERROR tests/test_first.py::test_never") == 2
