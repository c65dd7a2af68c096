#!/usr/bin/env python3
"""Make a venv with .venv's packages and an extra's beside them: `python deploy/beside.py .venv-lm-eval lm-eval`.

For clients of others whose packages are too many for .venv: tests and benchmarks run them there.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    folder, extra = ROOT / sys.argv[1], sys.argv[2]
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    (ours,) = (ROOT / ".venv").glob("lib/python*/site-packages")
    make(folder, packages, beside=ours)


def make(folder: Path, packages: list[str], *, beside: Path | None = None) -> None:
    """Make a venv with these packages, unless it has them.

    Args:
        beside: a folder of packages that programs of the venv find, too.

    Raises:
        subprocess.CalledProcessError: pip could not install them; its output says why.
    """
    stamp = folder / "packages.txt"
    if stamp.exists() and stamp.read_text() == "\n".join(packages):
        return
    venv.create(folder, with_pip=True, clear=True)
    if beside is not None:
        (theirs,) = folder.glob("lib/python*/site-packages")
        (theirs / "beside.pth").write_text(f"import site; site.addsitedir({str(beside)!r})\n")
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages], check=True)
    stamp.write_text("\n".join(packages))


if __name__ == "__main__":
    main()
