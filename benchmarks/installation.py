"""What the client is to install and to import, beside client and server together, which were one package before.

    python benchmarks/installation.py

Each goes into a venv of its own, from wheels that are built for it. Needs the extra `dev` and pip's package index.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import machine, table, write

ROOT = Path(__file__).parent.parent
INSTALLED = {"client": "batchyard", "client and server": "batchyard[server]"}
IMPORTED = {"import batchyard": "import batchyard", "batchyard.map": "import batchyard; batchyard.map"}
TIMES = 5
CPU_SECONDS = "import time; began = time.process_time(); {}; print(time.process_time() - began)"


def measured(folder: Path, requirement: str, wheels: Path) -> dict[str, Any]:
    """Install into a venv in this folder; return packages, MB, seconds of pip, and CPU seconds of imports."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    began = time.monotonic()
    subprocess.run([*pip, "install", "--quiet", "--find-links", wheels, requirement], check=True)
    seconds = time.monotonic() - began
    listed = subprocess.run([*pip, "list", "--format=json"], capture_output=True, text=True, check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    imports = {name: cpu_seconds(python, code) for name, code in IMPORTED.items()}
    return {"packages": len(json.loads(listed.stdout)), "MB": size / 1e6, "pip s": seconds, "imports": imports}


def cpu_seconds(python: Path, code: str) -> float:
    """Return the median of what the process spends on an import, once its modules are compiled."""
    command = [str(python), "-c", CPU_SECONDS.format(code)]
    runs = [float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(TIMES + 1)]
    return statistics.median(runs[1:])


def main() -> None:
    facts = machine("pip", "ray", "pyarrow")
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder) / "dist"
        for source in (ROOT, ROOT / "deploy/server"):
            build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", wheels, source]
            subprocess.run(build, check=True, capture_output=True)
        results = {name: measured(Path(folder) / str(n), INSTALLED[name], wheels) for n, name in enumerate(INSTALLED)}
    rows = [
        (
            name,
            one["packages"],
            f"{one['MB']:.0f}",
            f"{one['pip s']:.0f}",
            *(f"{s:.3f}" for s in one["imports"].values()),
        )
        for name, one in results.items()
    ]
    report = {"machine": facts, "installed": results}
    columns = ("", "packages", "MB", "pip s", *(f"{name}, CPU s" for name in IMPORTED))
    note = f"MB: all files of site-packages. CPU seconds: medians of {TIMES}, without Python's own start."
    write("installation", report, table(columns, rows), note)


if __name__ == "__main__":
    main()
