#!/usr/bin/env python3
"""Make the venvs of clients of others, which tests/foreign/clients.toml names: `python deploy/foreign.py [NAME …]`.

Each has a venv of its own in .venv-foreign, with its packages and nothing of ours. One that cannot be installed does
not keep the others from it.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib

from beside import ROOT, make


def main() -> None:
    clients = tomllib.loads((ROOT / "tests" / "foreign" / "clients.toml").read_text())
    names = sys.argv[1:] or list(clients)
    if unknown := set(names) - set(clients):
        sys.exit(f"no such client: {', '.join(sorted(unknown))}; there are {', '.join(clients)}")
    failed = []
    for name in names:
        try:
            make(ROOT / ".venv-foreign" / name, clients[name]["packages"])
        except subprocess.CalledProcessError:
            failed.append(name)
    if failed:
        sys.exit(f"not installed: {', '.join(failed)}; the lines above say why")


if __name__ == "__main__":
    main()
