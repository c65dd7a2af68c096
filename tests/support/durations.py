"""A plugin of pytest that measures tests, and runs the files that take longest first.

The seconds of each test's set-up, call and tear-down go to pytest's cache. `python -m tests.support.durations` prints
the slowest tests and the seconds of each group beside those of `tests/durations.json`; with `--write` it makes that
file, by which the next runs are ordered, and the table in `docs/testing.md`.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests/durations.json"
DOCUMENT = ROOT / "docs/testing.md"
CACHE_KEY = "durations/tests"
BEGIN, END = "<!-- durations: begin -->\n", "<!-- durations: end -->\n"
SLOWEST = 25
SHOWN = 10
PHASES = ("setup", "call", "teardown")
GROUPS = {
    "faults": {"faulty"},
    "browser": {"browser"},
    "stack": {"private_stack", "stack", "start_stack"},
    "Ray": {"cluster"},
    "PostgreSQL": {"postgresql", "s3_server"},
}
"""What a test starts, by the fixtures that it requests; the first that fits counts."""
TOGETHER = {"vLLM": "mark.vllm", "faults": "faulty: RunningStack"}
"""What stands in files whose tests all run on one test process, since they share a stack or engines."""
RELEASED = {"vLLM": ("vllm_stack", "vllm_serve", "cluster"), "faults": ("start_shared_stack",)}
"""The fixtures that end after the last of these tests: what they started takes time from others, even if it is idle."""


class Measured(NamedTuple):
    """The seconds of one test."""

    name: str
    group: str
    setup: float
    call: float
    teardown: float

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]

    @property
    def seconds(self) -> float:
        return self.setup + self.call + self.teardown


def group_of(item: pytest.Item) -> str:
    """Return what a test starts that takes time: a group's name."""
    if item.get_closest_marker("vllm"):
        return "vLLM"
    requested = set(getattr(item, "fixturenames", ()))
    named = (name for name, fixtures in GROUPS.items() if fixtures & requested)
    return next(named, "services" if item.get_closest_marker("stack") else "pure")


@pytest.hookimpl(tryfirst=True)  # it needs the markers that come before
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, so that the test processes end at about the same time.

    Those that request the stack of most tests come after all others: it lives as long as the test process, and takes
    time from the others, even if it does nothing.
    """
    seconds = _recorded_files()
    files = {item: item.nodeid.partition("::")[0] for item in items}
    of_unit: defaultdict[str, float] = defaultdict(float)
    for file in set(files.values()):
        of_unit[unit_of(file)] += seconds.get(file, 0.0)
    late = {unit_of(files[item]) for item in items if "stack" in getattr(item, "fixturenames", ())} - set(TOGETHER)
    order = {item: (unit := unit_of(file), -of_unit[unit], file) for item, file in files.items()}
    items.sort(key=lambda item: (order[item][0] in late, order[item][1], order[item][0], order[item][2]))
    for item in items:
        item.user_properties.append(("group", group_of(item)))


@functools.cache
def unit_of(file: str) -> str:
    """Return what a test process gets at once: a file, or all files that share a stack or engines."""
    path = ROOT / file
    text = path.read_text() if path.is_file() else ""
    return next((unit for unit, word in TOGETHER.items() if word in text), file)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    """End what the tests of a unit have shared. pytest would end it with the test process."""
    result = yield
    unit = unit_of(item.nodeid.partition("::")[0])
    if nextitem is not None and unit != unit_of(nextitem.nodeid.partition("::")[0]):
        for name in RELEASED.get(unit, ()):
            for fixture in item.session._fixturemanager.getfixturedefs(name, item) or ():
                fixture.finish(item._request)  # type: ignore[attr-defined]
    return result


def _recorded_files() -> dict[str, float]:
    return json.loads(RECORDED.read_text())["files"] if RECORDED.exists() else {}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return _Units(config, log) if config.getvalue("dist") == "loadfile" else None


class _Units(LoadScopeScheduling):
    """Hands a test process one unit after the other. (xdist's own groups do nothing with pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid.partition("::")[0])


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(config))


class _Recorder:
    """Adds the durations of this run to those in pytest's cache."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._suffix = " on servers" if config.getoption("backends", "local") == "servers" else ""
        self._tests: dict[str, dict[str, Any]] = defaultdict(lambda: dict.fromkeys(PHASES, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self._tests[report.nodeid + self._suffix]
        test[report.when or "call"] += round(report.duration, 3)
        test["group"] = dict(report.user_properties).get("group", "pure")

    def pytest_sessionfinish(self) -> None:
        if self._tests and getattr(self._config, "cache", None) is not None:
            self._config.cache.set(CACHE_KEY, self._config.cache.get(CACHE_KEY, {}) | self._tests)


def measured() -> list[Measured]:
    """Return what the last runs measured, the slowest test first."""
    file = ROOT / ".pytest_cache/v" / CACHE_KEY
    tests = json.loads(file.read_text()) if file.exists() else {}
    return sorted((Measured(name, **test) for name, test in tests.items()), key=lambda test: -test.seconds)


def by(key: str, tests: Iterable[Measured]) -> dict[str, float]:
    """Return the seconds of tests by `group` or `file`, the most first."""
    sums: defaultdict[str, float] = defaultdict(float)
    for test in tests:
        sums[getattr(test, key)] += test.seconds
    return {name: round(sums[name], 1) for name in sorted(sums, key=lambda name: -sums[name])}


def table(tests: list[Measured]) -> str:
    """Return the seconds by group and phase, and the slowest files, as Markdown."""
    rows = ["| group | tests | set-up | call | tear-down | all |", "|---|---|---|---|---|---|"]
    for group in by("group", tests):
        some = [test for test in tests if test.group == group]
        phases = [sum(getattr(test, phase) for test in some) for phase in PHASES]
        columns = " | ".join(f"{value:.0f}" for value in [*phases, sum(phases)])
        rows.append(f"| {group} | {len(some)} | {columns} |")
    files = [f"| `{file}` | {seconds:.0f} |" for file, seconds in list(by("file", tests).items())[:SHOWN]]
    return "\n".join([*rows, "", "| file | seconds |", "|---|---|", *files, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the slowest tests of the last runs and the seconds by group.")
    parser.add_argument("--write", action="store_true", help="record them for the order of tests and the docs")
    options = parser.parse_args()
    tests = measured()
    if not tests:
        sys.exit("no durations: run make test first")
    before = json.loads(RECORDED.read_text())["groups"] if RECORDED.exists() else {}
    print(f"\nThe {SLOWEST} slowest tests, in seconds: set-up, call, tear-down")
    for test in tests[:SLOWEST]:
        print(f"{test.setup:7.1f} {test.call:7.1f} {test.teardown:7.1f}  {test.name}")
    print("\nSeconds by group, and in tests/durations.json")
    for group, seconds in by("group", tests).items():
        print(f"{seconds:7.0f} {before.get(group, 0):7.0f}  {group}")
    if options.write:
        record = {"groups": by("group", tests), "files": by("file", tests)}
        RECORDED.write_text(json.dumps(record, indent=1) + "\n")
        start, rest = DOCUMENT.read_text().split(BEGIN)
        DOCUMENT.write_text(f"{start}{BEGIN}\n{table(tests)}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
