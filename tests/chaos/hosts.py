"""Hosts on this machine: network, process, mount and UTS namespaces, joined by a bridge."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.supervisor import TAG
from tests.support.stacks import ROOT

PREFIX = "chaos"


def missing() -> str | None:
    """Return why no campaign can run here; None if one can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "the campaign needs Linux and root, for network namespaces"
    for program in ("ip", "nft", "tc", "unshare", "nsenter", "setpriv"):
        if shutil.which(program) is None:
            return f"the campaign needs the program {program}"
    probe = f"{PREFIX}{os.getpid()}probe"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        return "this machine does not allow network namespaces"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


def run(*command: str, stdin: str | None = None) -> str:
    """Run a command and return its output. Raises CalledProcessError with what it said."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout


@dataclass
class Host:
    """A host of the network: its namespaces, and a supervisor that runs its services.

    Attributes:
        folder: what only this host sees at `here`, which is the same path on every host.
        disks: sizes of small file systems, by their paths below `here`.
    """

    name: str
    address: str
    namespace: str
    folder: Path
    here: Path
    services: list[dict[str, Any]] = field(default_factory=list)
    disks: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    def add(self, service: str, command: list[str], environment: dict[str, str]) -> None:
        """Add a service, before the start."""
        self.services.append({"name": service, "command": command, "environment": environment})

    def start(self) -> None:
        """Start the supervisor, which starts the services."""
        for name in ("log", "tmp", *self.disks):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        configuration = {
            "name": self.name,
            "folder": str(self.folder),
            "here": str(self.here),
            "disks": {str(self.here / path): size for path, size in self.disks.items()},
            "services": self.services,
        }
        (self.folder / "host.json").write_text(json.dumps(configuration))
        enter = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        enter += ["--mount", "--mount-proc"]
        self.process = subprocess.Popen(
            [*enter, sys.executable, "-m", "tests.chaos.supervisor", str(self.folder / "host.json")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,  # Ctrl-C is for the campaign alone
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", f"host {self.name} has not started"

    @property
    def supervisor(self) -> psutil.Process:
        """The first process of the host."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children()[0]

    def run(self, *command: str, environment: dict[str, str] | None = None) -> str:
        """Run a command on the host and return its output."""
        variables = [f"{name}={value}" for name, value in (environment or {}).items()]
        enter = ["nsenter", "--target", str(self.supervisor.pid), "--all", f"--wd={self.here}"]
        return run(*enter, "env", *variables, *command)

    def path(self, name: str) -> Path:
        """Return the path, seen from here, of a file below the host's `here`, small disks included."""
        return Path(f"/proc/{self.supervisor.pid}/root{self.here / name}")

    def processes(self, service: str) -> list[psutil.Process]:
        """Return the processes of a service, its first process first."""
        members: dict[int, psutil.Process] = {}
        for process in self.supervisor.children():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(TAG) == service:
                    # PostgreSQL's processes overwrite their environment.
                    members |= {member.pid: member for member in (process, *process.children(recursive=True))}
        return list(members.values())

    def close(self) -> None:
        """Kill every process of the host."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass
class Network:
    """A bridge, the hosts on it, and this machine as one more of them.

    The bridge has a namespace of its own: this machine's packet filter, which container engines tell to drop what is
    forwarded, does not reach it.
    """

    folder: Path
    hosts: dict[str, Host] = field(default_factory=dict)
    _name: str = field(default_factory=lambda: f"{PREFIX}{os.getpid()}")
    _subnet: str = field(default_factory=lambda: f"10.{200 + os.getpid() // 250 % 50}.{os.getpid() % 250}")

    def open(self) -> None:
        """Create the bridge; remove what campaigns that were killed have left."""
        for leftover in _leftovers():
            run("ip", "netns", "del", leftover)
        run("ip", "netns", "add", self._switch)
        run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self._switch, "link", "set", "bridge", "up")
        run("ip", "link", "add", self._name, "type", "veth", "peer", "name", "outside", "netns", self._switch)
        self._plug("outside")
        run("ip", "addr", "add", f"{self._subnet}.254/24", "dev", self._name)
        run("ip", "link", "set", self._name, "up")
        (self.folder / "here").mkdir()

    def add(self, name: str) -> Host:
        """Add a host, which is not started yet."""
        number = len(self.hosts) + 1
        namespace, port = f"{self._name}h{number}", f"host{number}"
        address, folder = f"{self._subnet}.{number}", self.folder / name
        folder.mkdir()
        folder.chmod(0o755)
        run("ip", "netns", "add", namespace)
        self.hosts[name] = Host(name, address, namespace, folder, self.folder / "here")
        run("ip", "-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        self._plug(port)
        run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            run("ip", "-n", namespace, "link", "set", device, "up")
        return self.hosts[name]

    @contextlib.contextmanager
    def filtered(self, host: Host, table: str, rule: str) -> Iterator[None]:
        """Drop packets of a host that match `rule`, in both directions, until the block ends.

        `rule` is a rule of nftables in which PEER stands for the other end's address, DEVICE for the device.
        """
        inside = rule.replace("PEER", "ip saddr").replace("DEVICE", "iifname")
        outside = rule.replace("PEER", "ip daddr").replace("DEVICE", "oifname")
        script = f"""
table inet {table} {{
    chain inside {{
        type filter hook input priority 0
        {inside} drop
    }}
    chain outside {{
        type filter hook output priority 0
        {outside} drop
    }}
}}
"""
        enter = ("ip", "netns", "exec", host.namespace, "nft")
        run(*enter, "-f", "-", stdin=script)
        try:
            yield
        finally:
            run(*enter, "delete", "table", "inet", table)

    @contextlib.contextmanager
    def slow(self, host: Host, rate: str) -> Iterator[None]:
        """Limit what a host sends to `rate`, with long queues, until the block ends."""
        device = ("dev", "eth0", "root")
        command = ("tc", "-n", host.namespace, "qdisc")
        run(*command, "add", *device, "tbf", "rate", rate, "burst", "16kbit", "latency", "2s")
        try:
            yield
        finally:
            run(*command, "del", *device)

    def close(self) -> None:
        """Kill all hosts and remove their namespaces and the bridge."""
        for host in self.hosts.values():
            host.close()
        for namespace in (self._switch, *(host.namespace for host in self.hosts.values())):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)

    @property
    def _switch(self) -> str:
        """The bridge's namespace, whose end is the end of all its links."""
        return f"{self._name}h0"

    def _plug(self, port: str) -> None:
        run("ip", "-n", self._switch, "link", "set", port, "master", "bridge", "up")


def _abandoned(name: str) -> bool:
    """True for the name of a namespace whose campaign no longer runs."""
    owner = name.removeprefix(PREFIX).partition("h")[0]
    return name.startswith(PREFIX) and owner.isdigit() and not psutil.pid_exists(int(owner))


def _leftovers() -> list[str]:
    return [entry["name"] for entry in json.loads(run("ip", "-j", "netns") or "[]") if _abandoned(entry["name"])]
