"""A Ray cluster that somebody else started on this machine, from a venv without Batchyard."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from ray._common.usage.usage_lib import get_cluster_metadata
from ray._raylet import GcsClient

from batchyard.local import programs
from batchyard.local.services import RAY_ENVIRONMENT
from tests.support import held_ports
from tests.support.ray_nodes import kill
from tests.support.rows import until

NODE = ["--block", "--disable-usage-stats", "--include-log-monitor=false", "--object-store-memory=80000000"]
NODE += ["--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"]
HEAD = ["--head", "--num-cpus=2", "--num-gpus=0", "--include-dashboard=false"]


class ForeignCluster:
    """Its head, from `start` on; `join` adds nodes. What a test has not killed ends with `close`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="by-"))  # short: the path of a socket is limited
        self.python = bare_python(self.folder / "venv")
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.port = held_ports.hold()
        self.address = f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the head, and wait until it answers."""
        unused = f"--ray-client-server-port={held_ports.hold()}"
        self._start(*HEAD, unused, f"--port={self.port}", f"--temp-dir={self.folder / 'ray'}")
        until(self._answers)

    def join(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a node with one CPU and, or so Ray believes, one GPU: engine echo asks for one and uses none."""
        return self._start(f"--address={self.address}", "--num-cpus=1", "--num-gpus=1", *options)

    def recorded_python(self, version: str) -> None:
        """Let the cluster's record say that it runs on this version of Python."""
        gcs = GcsClient(address=self.address)
        metadata = {**get_cluster_metadata(gcs), "python_version": version}
        gcs.internal_kv_put(b"CLUSTER_METADATA", json.dumps(metadata).encode(), True, b"cluster")

    def _start(self, *options: str) -> subprocess.Popen[bytes]:
        program = [str(self.python), "-c", "from ray.scripts.scripts import main; main()", "start"]
        with (self.folder / f"node{len(self.nodes)}.log").open("w") as log:
            node = subprocess.Popen(
                [*program, *options, *NODE, "--node-ip-address=127.0.0.1"],
                cwd=self.folder,
                env={
                    "PATH": os.environ["PATH"],
                    **RAY_ENVIRONMENT,
                    "RAY_AUTH_MODE": "disabled",
                    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
                },
                stdout=log,
                stderr=log,
            )
        self.nodes.append(node)
        return node

    def _answers(self) -> bool:
        assert self.nodes[0].poll() is None, (self.folder / "node0.log").read_text()
        return programs.accepts(self.folder / "ray/session_latest/sockets/raylet")

    def close(self) -> None:
        for node in self.nodes:
            if node.poll() is None:
                kill(node)
            node.wait(120)
        shutil.rmtree(self.folder, ignore_errors=True)


def bare_python(folder: Path) -> Path:
    """Return the interpreter of a new venv that has all packages of this one but Batchyard.

    They are links, which takes a moment where copies would take a minute.
    """
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "batchyard" not in entry.name.lower():
            (folder / "lib" / version / "site-packages" / entry.name).symlink_to(entry)
    python = folder / "bin" / "python"
    imported = subprocess.run([str(python), "-c", "import inference"], cwd=folder, capture_output=True)
    assert imported.returncode == 1, "the venv of the cluster has Batchyard"
    return python
