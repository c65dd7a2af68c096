"""A real S3 server: SeaweedFS, which can be stopped, paused and started again on the same data."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import held_ports

BUCKET = "artifacts"
ACCESS_KEY = "batchyard"
SECRET_KEY = "a-secret-of-the-tests"
_LISTENERS = ("master", "volume", "filer", "s3")


def command(folder: Path, host: str, listeners: dict[str, int]) -> list[str]:
    """Return the command line of a server on `host` that keeps everything in `folder`; write its configuration there.

    `listeners` names the ports of `master`, `volume`, `filer` and `s3`, and of the gRPC of each (`s3.grpc`).
    """
    credentials = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
    identity = {"name": "batchyard", "credentials": [credentials], "actions": ["Admin"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir(exist_ok=True)
    options = {
        "dir": folder / "data",
        "ip": host,
        "ip.bind": host,
        "filer": "true",
        "s3": "true",
        "s3.config": folder / "s3.json",
        "s3.iam": "false",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "filer.localSocket": folder / "filer.sock",
        "s3.localSocket": folder / "s3.sock",
        "master.telemetry": "false",
        "master.electionTimeout": "1s",  # a restarted server elects itself, and waits several times this long
        "master.volumeSizeLimitMB": 64,
        "volume.max": 200,
        "volume.minFreeSpace": "0",
    }
    for name in _LISTENERS:
        options[f"{name}.port"] = listeners[name]
        options[f"{name}.port.grpc"] = listeners[f"{name}.grpc"]
    weed = str(Path(sys.executable).parent / "weed")
    return [weed, "-logtostderr=true", "server", *(f"-{name}={value}" for name, value in options.items())]


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables by which s3fs, a client of botocore, reaches a server of `command`."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }


def create_bucket(endpoint: str) -> None:
    """Create the bucket of the tests unless it is there."""
    from botocore.session import Session

    client = Session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )
    with contextlib.suppress(client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=BUCKET)
    client.close()


def answers(endpoint: str) -> bool:
    """Return True if the server answers anything: it refuses requests without a key."""
    try:
        urllib.request.urlopen(endpoint, timeout=10).close()
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False
    return True


@dataclass
class S3Server:
    """A server on loopback that keeps its folder and ports while stopped.

    Attributes:
        folder: its data, configuration and log; short, because paths of sockets are limited.
        process: None while it is stopped.
    """

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="s3-")))
    process: subprocess.Popen[bytes] | None = None
    _ports: dict[str, int] = field(
        default_factory=lambda: {f"{name}{kind}": held_ports.hold() for name in _LISTENERS for kind in ("", ".grpc")}
    )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a process reaches this server."""
        return environment(self.endpoint)

    def url(self, prefix: str) -> str:
        """Return a URL for ARTIFACTS_URL: a prefix of the tests' bucket."""
        return f"s3://{BUCKET}/{prefix}"

    def start(self) -> None:
        """Start the server on its data, and return once it serves the bucket."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command(self.folder, "127.0.0.1", self._ports), stdout=log, stderr=log)
        deadline = time.monotonic() + 270
        while not answers(self.endpoint):
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "the S3 server does not answer"
            time.sleep(0.05)
        create_bucket(self.endpoint)

    def stop(self) -> None:
        """Kill the server: connections are refused from now on."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """Freeze the server: connections are accepted and nothing answers."""
        assert self.process is not None, "the server runs"
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # until it has stopped

    def resume(self) -> None:
        """Let a paused server go on."""
        assert self.process is not None, "the server runs"
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill the server and remove its data."""
        self.stop()
        for name in _LISTENERS:  # its Unix sockets have fixed names
            Path(f"/tmp/seaweedfs-{name}-grpc-{self._ports[f'{name}.grpc']}.sock").unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
