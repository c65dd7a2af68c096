"""Faults: the table of faults.toml, and a file's source with a fault in it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path


class Misplaced(Exception):
    """The code or a test that a fault names has moved."""


@dataclass(frozen=True)
class Fault:
    """A place in the code without which a promise is broken.

    Attributes:
        promise: what the tests hold the code to, as a sentence; it names the fault.
        file: its path in the tree.
        text: what stands in the file, exactly once.
        instead: what stands there once the fault is planted.
        tests: node ids of tests, of which one has to fail then.
    """

    promise: str
    file: str
    text: str
    instead: str
    tests: list[str]

    def planted(self, tree: Path) -> str:
        """Return the source of the file with the fault in it. Raises Misplaced."""
        path = tree / self.file
        source = path.read_text() if path.is_file() else ""
        if (times := source.count(self.text)) != 1:
            raise Misplaced(f"{self.promise}: {self.file} has the text {times} times; change tests/mutants/faults.toml")
        for test in self.tests:
            name, _, function = test.partition("::")
            if not (tree / name).is_file() or (function and f"def {function}(" not in (tree / name).read_text()):
                raise Misplaced(f"{self.promise}: there is no test {test}; change tests/mutants/faults.toml")
        return source.replace(self.text, self.instead)


FAULTS = [Fault(**entry) for entry in tomllib.loads((Path(__file__).parent / "faults.toml").read_text())["fault"]]
