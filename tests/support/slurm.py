"""A SLURM cluster of two nodes on this machine: munged, slurmctld and two slurmd, with own folders and ports."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil

from batchyard.local import process
from tests.support.held_ports import hold
from tests.support.rows import until
from tests.support.stacks import ROOT

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
NODES = ("127.0.0.1", "127.0.0.2")
"""Their names are addresses: jobs write them into their endpoint files."""
# A node that answers late is not lost: `kill_node` says which is. A requeued job waits until the credential of its last
# run has expired.
CONFIGURATION = """
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
JobRequeue=1
SlurmdTimeout=60
SchedulerParameters=sched_interval=2,bf_interval=2
KillWait=30
NodeName={nodes[0]} Port={ports[1]} CPUs=1
NodeName={nodes[1]} Port={ports[2]} CPUs=1
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def missing() -> str:
    """Why no cluster can run here; empty if one can."""
    if os.geteuid() != 0:
        return "slurmd starts jobs as root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)} (Debian's slurm-wlm and munge)" if absent else ""


class SlurmCluster:
    """The cluster, from `start` to `close`. A node runs one job at a time."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="by-"))  # short: the path of a socket is limited
        self._ports = [hold() for _ in range(3)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._configuration = self.folder / "slurm.conf"
        self._environment = {
            **os.environ,
            "SLURM_CONF": str(self._configuration),
            "PYTHONPATH": str(ROOT),
            process.TAG: str(self.folder),  # jobs inherit it
        }

    def start(self) -> None:
        """Start all daemons, and wait until the nodes can have jobs."""
        self._configuration.write_text(CONFIGURATION.format(folder=self.folder, ports=self._ports, nodes=NODES))
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {"socket": "munge.sock", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
        options = [f"--{name}={self.folder / file}" for name, file in files.items()]
        self._start("munged", "--foreground", "--force", f"--key-file={key}", *options)
        until((self.folder / "munge.sock").exists, 20)
        self._start("slurmctld", "-D")
        for node in NODES:
            self.start_node(node)

    def start_node(self, node: str) -> None:
        """Start a node, for the first time or after `kill_node`, and wait until it can have jobs."""
        self._start("slurmd", "-D", "-N", node, name=node)
        until(lambda: self._state(node) == "idle", 60)

    def kill_node(self, node: str) -> None:
        """Kill all of a node at once, as a loss of power would: first what could report the end of its job.

        SLURM is told that the node is down; by itself it would see it after a minute or more.
        """
        job = next(job for job, where in self.running().items() if where == node)
        of_job = [one for one in process.tagged(str(self.folder)) if one.environ().get("SLURM_JOB_ID") == job]
        self._daemons[node].kill()
        self._daemons[node].wait()
        _kill_with_steps(of_job)
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")

    def submit(self, options: list[str], *words: str) -> str:
        """Submit a batch script with its arguments; returns the job's id."""
        return self.run("sbatch", "--parsable", f"--output={self.folder}/job-%j.log", *options, *words).strip()

    def output(self, job: str) -> str:
        """What a job has printed, in all its runs."""
        return (self.folder / f"job-{job}.log").read_text()

    def running(self) -> dict[str, str]:
        """Return the running jobs with their nodes."""
        lines = self.run("squeue", "--noheader", "--states=running", "--format=%i %N").splitlines()
        return dict(map(str.split, lines))

    def job_state(self, job: str) -> str:
        """The state of a job, such as RUNNING."""
        fields = self.run("scontrol", "show", "job", "--oneliner", job).split()
        return next(field.removeprefix("JobState=") for field in fields if field.startswith("JobState="))

    def cancel_all(self) -> None:
        """Cancel all jobs, and wait until they have ended."""
        self.run("scancel", "--user=root")
        until(lambda: not self.run("squeue", "--noheader"), 60)

    def run(self, *words: str) -> str:
        """Run one of SLURM's commands; returns its output."""
        ended = self._call(*words)
        assert ended.returncode == 0, f"{words}: {ended.stderr}"
        return ended.stdout

    def close(self) -> None:
        """End all of it, jobs included."""
        for daemon in reversed(self._daemons.values()):
            daemon.kill()
            daemon.wait()
        _kill_with_steps(process.tagged(str(self.folder)))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, program: str, *options: str, name: str = "") -> None:
        name = name or program
        with (self.folder / f"{name}.log").open("ab") as log:
            words = [program, *options]
            self._daemons[name] = subprocess.Popen(words, env=self._environment, stdout=log, stderr=log)

    def _call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=self._environment, cwd=ROOT, capture_output=True, text=True, timeout=120)

    def _state(self, node: str) -> str:
        ended = self._call("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T")
        return ended.stdout.strip()


def _kill_with_steps(processes: list[psutil.Process]) -> None:
    """Kill processes of jobs, and first each slurmstepd above them, which could report their end."""
    steps = [one for one in map(psutil.Process.parent, processes) if one is not None and one.name() == "slurmstepd"]
    process.kill(steps)
    process.kill(processes)
