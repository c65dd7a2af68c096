"""A plugin of pytest that runs the files, and the tests of each file, in an order drawn by `--shuffle SEED`."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="run files, and the tests of each, in another order")


# First: pytest puts tests of one parameter of a file's fixture together, and conftest the longest files first.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("shuffle") is None:
        return
    random, files = Random(config.getoption("shuffle")), dict[Path, list[pytest.Item]]()
    for item in items:
        files.setdefault(item.path, []).append(item)
    for tests in files.values():
        random.shuffle(tests)
    items[:] = [item for path in random.sample(list(files), len(files)) for item in files[path]]
