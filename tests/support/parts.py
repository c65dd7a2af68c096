"""A plugin of pytest that says which tests a part of the suite runs.

A part runs on one pair of backends. `make test` runs each test in one part, `make test-all` some in both.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backends",
        choices=["local", "servers"],
        default="local",
        help="what running stacks keep their state in: SQLite and a folder, or PostgreSQL and S3",
    )
    parser.addoption(
        "--deployment",
        metavar="URL",
        help="in place of the shared stack, a deployment that runs, with its models and settings "
        "(tests/support/shared.py); BATCHYARD_TEST_KEY is its admin key",
    )
    parser.addoption(
        "--elsewhere",
        action="append",
        default=[],
        metavar="PATH",
        help="leave out the tests below PATH, which another part runs, but for those with marker local",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    elsewhere = [config.rootpath / path for path in config.getoption("elsewhere")]
    on_servers = config.getoption("backends") == "servers"

    def is_left_out(item: pytest.Item) -> bool:
        if item.get_closest_marker("local"):
            return on_servers
        return any(_is_below(item.path, path) for path in elsewhere)

    left_out = [item for item in items if is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_below(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents
