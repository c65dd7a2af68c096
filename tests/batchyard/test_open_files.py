"""The limit of open files."""

from __future__ import annotations

import resource

from batchyard import open_files


def test_a_process_may_open_as_many_files_as_the_machine_lets_it() -> None:
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
        open_files.raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
