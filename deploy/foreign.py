#!/usr/bin/env python3
"""Make the environments of clients of others: `python deploy/foreign.py [NAME …]`.

tests/foreign/clients.toml names the clients. Each has an environment of its own in .venv-foreign, with its packages and
nothing of ours: a venv, or a folder of npm's. One that cannot be installed does not keep the others from it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from beside import ROOT, make


def main() -> None:
    clients = tomllib.loads((ROOT / "tests" / "foreign" / "clients.toml").read_text())
    names = sys.argv[1:] or list(clients)
    if unknown := set(names) - set(clients):
        sys.exit(f"no such client: {', '.join(sorted(unknown))}; there are {', '.join(clients)}")
    failed = []
    for name in names:
        folder, entry = ROOT / ".venv-foreign" / name, clients[name]
        try:
            if "npm" in entry:
                make_from_npm(folder, entry["npm"])
            else:
                make(folder, entry["packages"])
        except subprocess.CalledProcessError:
            failed.append(name)
        except FileNotFoundError as error:
            print(f"{name}: {error}; install Node, which has npm", file=sys.stderr)
            failed.append(name)
    if failed:
        sys.exit(f"not installed: {', '.join(failed)}; the lines above say why")


def make_from_npm(folder: Path, packages: list[str]) -> None:
    """Make a folder with these packages of npm, unless it has them.

    Raises:
        FileNotFoundError: there is no npm.
        subprocess.CalledProcessError: npm could not install them; its output says why.
    """
    stamp = folder / "packages.txt"
    if stamp.exists() and stamp.read_text() == "\n".join(packages):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = ["--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder)]
    subprocess.run(["npm", "install", *options, *packages], check=True)
    stamp.write_text("\n".join(packages))


if __name__ == "__main__":
    main()
