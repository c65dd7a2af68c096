"""What goes wrong in a campaign: the kinds of faults, the plan that a seed makes, and the threads that run it."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
import redis

from tests.chaos.deployment import CLOCK_HOST, Deployment, has_clocks
from tests.chaos.hosts import Host

T = TypeVar("T")
MOST_AT_ONCE = 3
CLOCK_SECONDS = 30
HEAVY = ("raylet", "GCS", "cut off", "parted")


class Skipped(Exception):
    """The target is not there: an earlier fault has taken it, and it is being started."""


@dataclass(frozen=True)
class Planned:
    """A fault of the plan.

    Attributes:
        at: seconds after the campaign's begin.
        seconds: how long it lasts; 0 for what happens in a moment.
        choices: numbers in [0, 1) that choose hosts and processes.
    """

    at: float
    kind: str
    seconds: float
    choices: tuple[float, float]


@dataclass
class Fault:
    """A fault that has happened. Times are those of the monotonic clock; `ended` is None while it lasts."""

    kind: str
    target: str
    began: float
    ended: float | None = None


Apply = Callable[[Deployment, Planned], AbstractContextManager[str]]
"""Makes a fault, yields its target, and ends the fault."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault: how often it is chosen, and between how many and how many seconds it lasts."""

    apply: Apply
    weight: int
    seconds: tuple[float, float] = (0, 0)


def choose(items: list[T], choice: float) -> T:
    """Return the item that a number in [0, 1) chooses. Raises Skipped if there is none."""
    if not items:
        raise Skipped
    return items[int(choice * len(items))]


# Which processes of a deployment a fault may hit.


def _service(service: str) -> Callable[[Deployment, Planned], tuple[Host, list[psutil.Process]]]:
    """All processes of a service, on one of the hosts that have it."""

    def processes(deployment: Deployment, planned: Planned) -> tuple[Host, list[psutil.Process]]:
        hosts = [
            host
            for host in deployment.network.hosts.values()
            if any(entry["name"] == service for entry in host.services)
        ]
        host = choose(hosts, planned.choices[0])
        return host, host.processes(service)

    return processes


def _child(service: str, matches: Callable[[psutil.Process], bool]) -> Callable[..., tuple[Host, list[psutil.Process]]]:
    """One process of a service that `matches`, on any host."""

    def processes(deployment: Deployment, planned: Planned) -> tuple[Host, list[psutil.Process]]:
        there = []
        for host in deployment.workers:
            for process in host.processes(service)[1:]:
                with contextlib.suppress(psutil.Error):
                    if matches(process):
                        there.append((host, process))
        host, process = choose(there, planned.choices[0])
        return host, [process]

    return processes


def _named(name: str) -> Callable[[psutil.Process], bool]:
    return lambda process: process.name() == name


def _titled(title: str) -> Callable[[psutil.Process], bool]:
    return lambda process: any(title in word for word in process.cmdline()[:1])


TARGETS = {
    "web": _service("web"),
    "worker": _service("worker"),
    "housekeeper": _service("housekeeper"),
    "a housekeeper's child": _child("housekeeper", lambda process: "spawn_main" in " ".join(process.cmdline())),
    "beat": _service("beat"),
    "jobs' worker": _service("webhooks"),
    "raylet": _child("ray", _named("raylet")),
    "Ray's GCS": _child("ray", _named("gcs_server")),
    "engine": _child("ray", _titled("ray::EngineActor")),
    "Redis": _service("redis"),
    "PostgreSQL": _service("postgresql"),
    "S3": _service("s3"),
}


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _hit(target: str, deployment: Deployment, planned: Planned) -> tuple[Host, list[psutil.Process]]:
    """Return a host and the processes of a target on it. Raises Skipped if there is none."""
    host, processes = TARGETS[target](deployment, planned)
    if not processes:
        raise Skipped
    return host, processes


def _killed(target: str) -> Apply:
    @contextmanager
    def apply(deployment: Deployment, planned: Planned) -> Iterator[str]:
        host, processes = _hit(target, deployment, planned)
        _signal(processes, signal.SIGKILL)
        yield host.name

    return apply


def _stopped(target: str) -> Apply:
    @contextmanager
    def apply(deployment: Deployment, planned: Planned) -> Iterator[str]:
        host, processes = _hit(target, deployment, planned)
        _signal(processes, signal.SIGSTOP)
        try:
            yield host.name
        finally:
            _signal(processes, signal.SIGCONT)

    return apply


@contextmanager
def _restart_postgresql(deployment: Deployment, planned: Planned) -> Iterator[str]:
    processes = deployment.storage.processes("postgresql")
    _signal(processes[:1], signal.SIGINT)  # its "fast" shutdown, as a package's upgrade does it
    yield deployment.storage.name


_tables = itertools.count()


@contextmanager
def _cut_off(deployment: Deployment, planned: Planned) -> Iterator[str]:
    host = choose(list(deployment.network.hosts.values()), planned.choices[0])
    with deployment.network.filtered(host, f"fault{next(_tables)}", 'DEVICE "eth0"'):
        yield host.name


@contextmanager
def _parted(deployment: Deployment, planned: Planned) -> Iterator[str]:
    pairs = list(itertools.combinations(deployment.network.hosts.values(), 2))
    one, other = choose(pairs, planned.choices[0])
    with deployment.network.filtered(one, f"fault{next(_tables)}", f"PEER {other.address}"):
        yield f"{one.name} and {other.name}"


@contextmanager
def _lossy(deployment: Deployment, planned: Planned) -> Iterator[str]:
    host = choose(list(deployment.network.hosts.values()), planned.choices[0])
    rule = 'DEVICE "eth0" numgen random mod 100 < 30'
    with deployment.network.filtered(host, f"fault{next(_tables)}", rule):
        yield host.name


@contextmanager
def _slow(deployment: Deployment, planned: Planned) -> Iterator[str]:
    host = choose(list(deployment.network.hosts.values()), planned.choices[0])
    with deployment.network.slow(host, "1mbit"):
        yield host.name


@contextmanager
def _s3_refuses(deployment: Deployment, planned: Planned) -> Iterator[str]:
    refuse = deployment.storage.folder / "refuse"
    refuse.touch()
    try:
        yield deployment.storage.name
    finally:
        refuse.unlink(missing_ok=True)


@contextmanager
def _flush_redis(deployment: Deployment, planned: Planned) -> Iterator[str]:
    try:
        redis.Redis.from_url(deployment.environment["REDIS_URL"], socket_timeout=5).flushall()
    except (redis.RedisError, OSError) as error:
        raise Skipped from error
    yield deployment.first.name


@contextmanager
def _clock_off(deployment: Deployment, planned: Planned) -> Iterator[str]:
    host = choose([deployment.network.hosts[CLOCK_HOST], deployment.first], planned.choices[0])
    seconds = choose([CLOCK_SECONDS, -CLOCK_SECONDS], planned.choices[1])
    clock = host.folder / "clock"
    clock.write_text(f"{seconds:+d}s")
    try:
        yield f"{host.name}{' (beat)' if host is deployment.first else ''} by {seconds:+d} s"
    finally:
        clock.write_text("+0")


@contextmanager
def _full_disk(deployment: Deployment, planned: Planned) -> Iterator[str]:
    disks = [(host, "tmp") for host in deployment.workers] + [(deployment.storage, "s3/data")]
    host, disk = choose(disks, planned.choices[0])
    filler = host.path(disk) / "filler"
    _fill(filler)
    try:
        yield f"{host.name}: {disk}"
    finally:
        filler.unlink(missing_ok=True)


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(2**20))


KINDS: dict[str, Kind] = {
    # Ray, workers and the web app take seconds of CPU to start: they are killed less often.
    **{
        f"kill -9 of {target}": Kind(_killed(target), weight)
        for target, weight in {
            "web": 2,
            "worker": 2,
            "housekeeper": 2,
            "a housekeeper's child": 2,
            "beat": 2,
            "jobs' worker": 2,
            "raylet": 1,
            "Ray's GCS": 1,
            "engine": 4,
            "Redis": 4,
            "PostgreSQL": 4,
            "S3": 4,
        }.items()
    },
    **{
        f"SIGSTOP of {target}": Kind(_stopped(target), weight, (3, 25))
        for target, weight in {
            "web": 1,
            "worker": 3,
            "housekeeper": 2,
            "a housekeeper's child": 1,
            "beat": 1,
            "jobs' worker": 2,
            "raylet": 1,
            "Ray's GCS": 1,
            "engine": 2,
            "Redis": 2,
            "PostgreSQL": 2,
            "S3": 2,
        }.items()
    },
    "restart of PostgreSQL": Kind(_restart_postgresql, 4),
    "Redis FLUSHALL": Kind(_flush_redis, 6),
    "S3 answers 503": Kind(_s3_refuses, 5, (3, 20)),
    "host cut off": Kind(_cut_off, 4, (5, 60)),
    "two hosts parted": Kind(_parted, 5, (5, 60)),
    "30 % of a host's packets lost": Kind(_lossy, 3, (5, 30)),
    "a host's link at 1 Mbit/s": Kind(_slow, 3, (5, 30)),
    "clock off by 30 s": Kind(_clock_off, 4, (10, 60)),
    "disk full": Kind(_full_disk, 4, (5, 30)),
}


def kinds() -> dict[str, Kind]:
    """Return the kinds of faults that this machine can make."""
    return {name: kind for name, kind in KINDS.items() if name != "clock off by 30 s" or has_clocks()}


def plan(seed: int, seconds: float, gap: float, light: bool = False) -> list[Planned]:
    """Return the faults of a campaign of `seconds`, one each `gap` seconds in the mean: the same for the same seed.

    All kinds come before one comes again, as far as the time reaches. None lasts longer than a tenth of the campaign,
    or 10 s if that is more. A `light` plan leaves out what Ray takes most of a minute to get over.
    """
    random_ = random.Random(seed)
    there = {name: kind for name, kind in kinds().items() if not (light and name.endswith(HEAVY))}
    at = 0.0
    first = list(there)
    random_.shuffle(first)
    faults = []
    while True:
        at += random_.uniform(0.5, 1.5) * gap
        name = first.pop() if first else random_.choices(list(there), [kind.weight for kind in there.values()])[0]
        shortest, longest = there[name].seconds
        # Mostly short: a deployment that is always broken would show little.
        lasts = random_.triangular(shortest, min(longest, max(10.0, seconds / 10)), shortest)
        choices = (random_.random(), random_.random())
        if at > seconds:
            return faults
        faults.append(Planned(at, name, min(lasts, seconds - at), choices))


class Injector:
    """Runs a plan. `faults` has those that have happened; `skipped` counts those whose target was not there."""

    def __init__(self, deployment: Deployment, end: threading.Event) -> None:
        self._deployment = deployment
        self._end = end
        self._room = threading.Semaphore(MOST_AT_ONCE)
        self.faults: list[Fault] = []
        self.skipped = 0
        self.errors: list[str] = []

    def run(self, planned: list[Planned]) -> None:
        """Make the faults at their times, and return when the last has ended."""
        began, threads = time.monotonic(), []
        for fault in planned:
            if self._end.wait(max(0.0, began + fault.at - time.monotonic())):
                break
            threads.append(threading.Thread(target=self._make, args=(fault,), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _make(self, planned: Planned) -> None:
        with self._room:
            fault = Fault(planned.kind, "", time.monotonic())
            try:
                with kinds()[planned.kind].apply(self._deployment, planned) as fault.target:
                    self.faults.append(fault)
                    self._end.wait(planned.seconds)
            except Skipped:
                self.skipped += 1
            except (OSError, RuntimeError, psutil.Error) as error:
                self.errors.append(f"{planned.kind}: {error}")
            finally:
                fault.ended = time.monotonic()
