"""A plugin of pytest that notes which tests pass at their second try, for the end of `make test`.

`make test` runs what has failed once more, alone, with `--last-failed` and `--second-tries FILE`: each test that passes
then becomes a line of the file.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--second-tries", type=Path, metavar="FILE", help="append the tests that pass in this run")


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("second_tries"):
        config.pluginmanager.register(_SecondTries(file, config.getoption("backends")))


class _SecondTries:
    """Collects the outcome of each test over its set-up, call and tear-down."""

    def __init__(self, file: Path, backends: str) -> None:
        self._file = file
        self._suffix = "" if backends == "local" else f" --backends {backends}"
        self._passed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed[report.nodeid] = self._passed.get(report.nodeid, True) and report.passed

    def pytest_sessionfinish(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.writelines(f"{nodeid}{self._suffix}\n" for nodeid, passed in self._passed.items() if passed)
