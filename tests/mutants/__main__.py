"""Plant faults in a copy of the tree, one at a time, and say which tests catch them."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.faults import FAULTS, Fault, Misplaced

ROOT = Path(__file__).parent.parent.parent
SECONDS = 300
"""The longest that the tests of one fault may take."""
OPTIONS = ("-q", "--exitfirst", "-rfE", "-m", "not exhaustive and not stack", "-o", "addopts=", "--timeout=120")
PLUGINS = ("-p", "no:schemathesis", "-p", "no:cacheprovider")


def copy_tree(target: Path) -> None:
    """Copy what git knows or would add, and link to .venv."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    (target / ".venv").symlink_to(ROOT / ".venv")


@contextmanager
def planted(tree: Path, fault: Fault) -> Iterator[None]:
    """Plant a fault until the block ends."""
    path = tree / fault.file
    source, with_fault = path.read_text(), fault.planted(tree)
    try:
        _write(path, with_fault)
        yield
    finally:
        _write(path, source)


def _write(path: Path, source: str) -> None:
    path.write_text(source)
    # Python knows a source that has changed by its size and its time in seconds, which may both be the same.
    Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)


def run_tests(tree: Path, tests: Sequence[str]) -> tuple[bool, str | None, str]:
    """Run tests up to the first that fails. Return whether all passed, the one that failed, and what pytest says."""
    command = [sys.executable, "-m", "pytest", *OPTIONS, *PLUGINS, *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    try:
        ended = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False, None, f"The tests took longer than {SECONDS} s."
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", ended.stdout, re.MULTILINE)
    return ended.returncode == 0, failed and failed[1], ended.stdout + ended.stderr


def run_all(faults: Sequence[Fault]) -> int:
    """Plant faults one after the other. Return how many no test catches. Raises Misplaced."""
    missed = 0
    with tempfile.TemporaryDirectory(prefix="batchyard-mutants-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        for fault in faults:
            fault.planted(tree)
        passed, failed, output = run_tests(tree, list(dict.fromkeys(test for fault in faults for test in fault.tests)))
        if not passed:
            sys.exit(f"{output}\nWithout a fault the tests have to pass: {failed or 'they did not run'}.")
        for number, fault in enumerate(faults, 1):
            began = time.monotonic()
            with planted(tree, fault):
                _, failed, output = run_tests(tree, fault.tests)
            missed += failed is None
            verdict = f"caught by {failed}" if failed else f"MISSED\n{output}"
            print(f"{number:2} {time.monotonic() - began:5.1f} s  {fault.promise}: {verdict}", flush=True)
    print(f"{len(faults) - missed} of {len(faults)} faults were caught.")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="the faults whose promise or file has this in it")
    parser.add_argument("--list", action="store_true", help="print the faults and plant none")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if not options.only or options.only in f"{fault.promise} {fault.file}"]
    if not faults:
        sys.exit(f"no fault has {options.only!r} in its promise or file")
    if options.list:
        print("\n".join(f"{fault.promise} ({fault.file})" for fault in faults))
        return 0
    try:
        return 1 if run_all(faults) else 0
    except Misplaced as error:
        sys.exit(str(error))


if __name__ == "__main__":
    sys.exit(main())
