"""Kills at random over a job: `python -m tests.chaos.jobs --kills 100 --backends servers --recipe refine --seed 1`.

One stack runs the same job again and again while its processes are killed with -9. Each time the results must be those
of the run that nothing has disturbed, byte by byte. The engine's own log of calls says what was asked, and how often.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import requests
from sqlalchemy import func, select

from batchyard.statuses import TERMINAL
from store.artifacts import Artifacts
from store.database import Database
from store.records import Batch, Job, JobStage
from tests.chaos import agents, cascading, generating, in_flight, refining, relay
from tests.chaos.deployment import versions
from tests.chaos.monitor import CallLog
from tests.chaos.program import Program
from tests.chaos.report import table
from tests.chaos.runs import Kill, Run, without
from tests.chaos.verdicts import House
from tests.support import postgresql
from tests.support.s3 import S3Server
from tests.support.stacks import RunningStack, on_servers

GAP_SECONDS = 3.0
"""Seconds before a kill, in the mean: after the kill before it, or after the job has moved on since that."""
RECOVERY_SECONDS = 60.0
"""A job moves on within this long, or the next kill comes without that."""
SETTLE_SECONDS = 300.0
"""A job ends within this long after the last kill. The API answers again within it."""
WHERE = {"local": "SQLite and a folder", "servers": "PostgreSQL and S3"}
SETTINGS = {"BATCHYARD_ALLOW_SIMULATED": "1", "BATCHYARD_LEASE_SECONDS": "10"}
PROGRAMS: dict[str, Callable[..., Program]] = {
    "stages": relay.program,
    "refine": refining.program,
    "generate": generating.program,
    "agent": agents.program,
    "cascade": cascading.program,
}
Find = Callable[[RunningStack, random.Random], list[psutil.Process]]

log = logging.getLogger(__name__)


# What a kill may hit.


def _whole(name: str) -> Find:
    """A process of the stack with all its descendants."""
    return lambda stack, _: stack.processes(name)


def _one(name: str, matches: Callable[[psutil.Process], bool]) -> Find:
    """One descendant that `matches`, chosen at random."""

    def find(stack: RunningStack, random_: random.Random) -> list[psutil.Process]:
        processes = [process for process in stack.processes(name)[1:] if matches(process)]
        return [random_.choice(processes)] if processes else []

    return find


def _serves_tools(process: psutil.Process | None) -> bool:
    return process is not None and "recipes.tools.server" in process.cmdline()


KINDS: dict[str, Find] = {
    "web": _whole("web"),
    "worker": _whole("worker"),
    "jobs' worker": _whole("webhooks"),
    "process of rewards": _one("webhooks", lambda process: "spawn_main" in " ".join(process.cmdline())),
    "process of tools": _one(
        "webhooks", lambda process: _serves_tools(process) and not _serves_tools(process.parent())
    ),
    "housekeeper": _whole("housekeeper"),
    "housekeeper's child": _one("housekeeper", lambda process: True),
    "beat": _whole("beat"),
    "Redis": _whole("redis"),
    "Ray": _whole("ray"),
    "engine": _one("ray", lambda process: any("ray::EngineActor" in word for word in process.cmdline()[:1])),
}


def processes_of(kind: str, stack: RunningStack, random_: random.Random) -> list[psutil.Process]:
    """Return the processes that a kill of this kind hits; none while they are being started again."""
    try:
        return [process for process in KINDS[kind](stack, random_) if process.status() != psutil.STATUS_ZOMBIE]
    except (psutil.Error, OSError, ValueError):
        return []


class Campaign:
    """Runs the job undisturbed, and then with kills until there were enough of them or the time is over."""

    def __init__(
        self,
        stack: RunningStack,
        folder: Path,
        program: Program,
        seed: int,
        kinds: Sequence[str] = tuple(KINDS),
        gap: float = GAP_SECONDS,
    ) -> None:
        """
        Args:
            folder: of the logs of calls.
        """
        self._stack = stack
        self._gap = gap
        self._program = program
        self._random = random.Random(seed)
        self._kinds = kinds
        self._deck: list[str] = []
        self._database = Database(stack.database_url)
        self._calls = CallLog([folder / name for name in program.logs], program.name_of)
        self._earlier_calls = Counter[str]()
        self._artifacts = _artifacts(stack)
        self._house = None if program.passes is None else House(stack.url, stack.key, program.passes)
        log_of_tools = folder / agents.LOG
        self._tools = agents.ToolAudit(log_of_tools, self._artifacts) if log_of_tools.name in program.logs else None
        self._http = requests.Session()
        self._http.headers["Authorization"] = f"Bearer {stack.key}"
        self.runs: list[Run] = []
        self.seconds = 0.0

    @property
    def kills(self) -> list[Kill]:
        return [kill for run in self.runs for kill in run.kills]

    @property
    def wrong(self) -> list[str]:
        return [f"job {run.tag}: {problem}" for run in self.runs for problem in run.wrong]

    def run(self, kills: int, minutes: float) -> None:
        """Run the campaign. It stops early at what is wrong."""
        began = time.monotonic()
        deadline = began + 60 * minutes
        self._job(0, deadline)
        while len(self.kills) < kills and time.monotonic() < deadline and not self.wrong:
            self._job(kills - len(self.kills), deadline)
            run = self.runs[-1]
            log.info(
                "job %s: %d kills, %.0f s, %d computed again, %d of these without a kill",
                *(run.tag, len(run.kills), run.seconds, run.repeated, run.surplus.total()),
            )
        self.seconds = time.monotonic() - began

    def close(self) -> None:
        self._database.close()

    def _job(self, kills: int, deadline: float) -> None:
        """Run the job once, with at most so many kills, and look at what has come of it."""
        tag = f"run{len(self.runs)}"
        self.runs.append(run := Run(tag, self._program.requests(tag)))
        self._calls.read()
        self._earlier_calls = Counter(self._calls.counts)
        if self._tools is not None:
            self._tools.begin()
        job_id = self._create(tag)
        began = time.monotonic()
        with contextlib.nullcontext() if self._house is None else self._house.judging(job_id):
            self._kill(run, job_id, kills, deadline)
            self._wait_for_end(run, job_id)
        run.seconds = time.monotonic() - began
        if not run.wrong:
            self._look(run, job_id)

    def _wait_for_end(self, run: Run, job_id: str) -> None:
        ends = time.monotonic() + SETTLE_SECONDS
        while (status := self._status(job_id)) not in TERMINAL:
            if time.monotonic() > ends:
                run.wrong.append(f"still {status} {SETTLE_SECONDS:.0f} s after the last kill: {self._get(job_id).text}")
                return
            time.sleep(0.2)

    def _look(self, run: Run, job_id: str) -> None:
        """Read results and calls of an ended job."""
        job = self._get(job_id).json()
        counts, ends = job["request_counts"], self._program.ends
        expected = {"total": ends.total(), **{state: ends[state] for state in ("completed", "failed", "stuck")}}
        if job["status"] != "completed" or not counts.items() >= expected.items():
            run.wrong.append(f"it is {job['status']}, with items {counts} and errors {job['errors']}")
            return
        if self._house is not None:
            run.wrong += self._house.refused
        artifacts = {artifact["name"]: artifact["file_id"] for artifact in job["batchyard"]["artifacts"]}
        results = b"".join(self._content(artifacts[name]) for name in self._program.artifacts)
        run.results = results.replace(f"{run.tag}-".encode(), b"run-")
        if self._program.interrupted is not None:
            run.interrupted = dict(filter(None, map(self._program.interrupted, run.results.splitlines())))
            run.results = without(run.results, run.interrupted)
            for number, turns in run.interrupted.items():
                for left in range(agents.TURNS - turns + 1):
                    del run.requests[f"{run.tag}-{number}.{left}"]
                run.requests[agents.INTERRUPTED] += 1
        if self._tools is not None:
            run.wrong += self._tools.wrong(self._content(artifacts["journal.parquet"]))
            run.tool_calls, run.calls_in_flight = self._tools.made.total(), self._tools.in_flight
        run.probes = job["batchyard"]["counters"].get("probes", 0)
        children = self._call("GET", "/jobs", params={"parent_id": job_id, "limit": 100}).json()["data"]
        stages = [stage for each in (job, *children) for stage in each["batchyard"]["stages"]]
        issued = sum(stage["issued"] for stage in stages)
        if issued != run.requests.total() + run.probes:
            run.wrong.append(f"{issued} requests were issued, not {run.requests.total()} and {run.probes} probes")
        for stage in stages:
            batch = self._call("GET", f"/batches/{stage['batch_id']}").json()
            files = [batch[name] for name in ("output_file_id", "error_file_id") if batch[name] is not None]
            lines = [line for id_ in files for line in self._content(id_).splitlines()]
            names = Counter(json.loads(line)["custom_id"] for line in lines)
            if not names.total() == len(names) == stage["issued"] == stage["answered"]:
                run.wrong.append(f"stage {stage}: its files have {names.total()} lines of {len(names)} requests")
        run.calls = self._calls_of(run)
        with self._database.read() as session:
            issued_requests = in_flight.Requests.of_job(session, job_id, self._artifacts, self._program.name_in)
        run.audit(self.runs[0].results, issued_requests)

    def _calls_of(self, run: Run) -> Counter[str]:
        """Return how often an engine has begun each request of the run under way."""
        self._calls.read()
        names = self._calls.by_tag[run.tag] | self._calls.by_tag[""]
        return Counter({name: self._calls.counts[name] for name in names}) - self._earlier_calls

    # Kills.

    def _kill(self, run: Run, job_id: str, kills: int, deadline: float) -> None:
        """Kill processes until the job has ended, or there were so many kills.

        Half of the kills come soon after the one before, while the stack recovers; the others when the job moves on.
        """
        for _ in range(kills):
            if self._random.random() < 0.5:
                self._wait_for_progress(job_id)
            time.sleep(self._random.uniform(0.2, 2 * self._gap))
            if self._status(job_id) in TERMINAL or time.monotonic() > deadline:
                return
            kind, processes = self._choose()
            if self._tools is not None:
                with self._database.read() as session:
                    self._tools.note_kill(session, job_id)
            with self._database.read() as session:
                segments = in_flight.running(session, job_id)
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            run.kills.append(Kill(kind, segments, self._calls_of(run)))
            log.info("kill -9 of %s", kind)

    def _choose(self) -> tuple[str, list[psutil.Process]]:
        """Return a kind and its processes: all kinds come before one comes again, as far as they are there."""
        while True:
            if not self._deck:
                self._deck = self._random.sample(self._kinds, len(self._kinds))
            for kind in self._deck:
                if processes := processes_of(kind, self._stack, self._random):
                    self._deck.remove(kind)
                    return kind, processes
            if len(self._deck) < len(self._kinds):
                self._deck = []  # what is left of it does not run, for now
            if self._stack.process.poll() is not None:
                raise RuntimeError(f"`batchyard up` has ended; see {self._stack.data.parent}")
            time.sleep(0.1)

    def _wait_for_progress(self, job_id: str) -> None:
        stored, deadline = self._stored(job_id), time.monotonic() + RECOVERY_SECONDS
        while self._stored(job_id) <= stored and self._status(job_id) not in TERMINAL:
            if time.monotonic() > deadline:
                return
            time.sleep(0.1)

    # What the database says, whatever runs.

    def _status(self, job_id: str) -> str:
        with self._database.read() as session:
            return str(session.scalar(select(Job.status).where(Job.id == job_id)))

    def _stored(self, job_id: str) -> int:
        """Return the number of the requests of the job, or of the jobs that it has started, that have an answer."""
        answers = select(func.sum(Batch.completed + Batch.failed)).join(JobStage, JobStage.batch_id == Batch.id)
        answers = answers.join(Job, Job.id == JobStage.job_id)
        with self._database.read() as session:
            return int(session.scalar(answers.where((Job.id == job_id) | (Job.parent_id == job_id))) or 0)

    # The API, which is away at times.

    def _create(self, tag: str) -> str:
        self._call("GET", "/readyz", root=self._stack.url)
        content = "".join(json.dumps(row) + "\n" for row in self._program.rows(tag)).encode()
        file = self._call("POST", "/files", files={"file": ("items.jsonl", content)}, data={"purpose": "user_data"})
        body = self._program.body(file.json()["id"]) | {"name": tag}
        return str(self._call("POST", "/jobs", json=body, headers={"Idempotency-Key": tag}).json()["id"])

    def _get(self, job_id: str) -> requests.Response:
        return self._call("GET", f"/jobs/{job_id}")

    def _content(self, file_id: str) -> bytes:
        return self._call("GET", f"/files/{file_id}/content").content

    def _call(self, method: str, path: str, root: str | None = None, **options: Any) -> requests.Response:
        """Call the API until it answers. Raises RuntimeError if it refuses the call, or is away for too long."""
        url, deadline = (root or f"{self._stack.url}/v1") + path, time.monotonic() + SETTLE_SECONDS
        while True:
            try:
                response = self._http.request(method, url, timeout=30, **options)
                if response.ok:
                    return response
                answer = f"{response.status_code} {response.text}"
            except requests.RequestException as error:
                answer = str(error)
            else:
                if response.status_code < 500 and response.status_code != 429:
                    raise RuntimeError(f"{method} {path}: {answer}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{method} {path}, for {SETTLE_SECONDS:.0f} s: {answer}")
            time.sleep(0.2)

    def markdown(self, backends: str, seed: int) -> str:
        """Return the report."""
        undisturbed, disturbed = self.runs[0], self.runs[1:]
        numbers = Counter(kill.kind for kill in self.kills)
        parts = [
            f"# {len(self.kills)} kills over a job, on {WHERE[backends]}, seed {seed}",
            "Versions: " + ", ".join(f"{name} {version}" for name, version in versions().items()) + ".",
            f"{len(disturbed)} runs of a job of {self._program.items} items, {undisturbed.requests.total()} requests: "
            f"{self._program.summary}. "
            f"All took {self.seconds:.0f} s, the undisturbed run before them {undisturbed.seconds:.0f} s.",
            table(
                ["kill -9 of", "times", "most in flight"],
                (
                    (kind, number, max(kill.in_flight.total() for kill in self.kills if kill.kind == kind))
                    for kind, number in sorted(numbers.items())
                ),
            ),
            table(
                [
                    "job",
                    "kills",
                    "seconds",
                    "requests",
                    "probes",
                    "computed",
                    "again",
                    "in flight at the kills",
                    "again without a kill",
                    "calls of tools",
                    "in flight",
                    "interrupted",
                    "same bytes",
                ],
                (
                    (
                        *(run.tag, len(run.kills), f"{run.seconds:.0f}", run.requests.total(), run.probes),
                        *(run.calls.total(), run.repeated, run.in_flight, run.surplus.total()),
                        *(run.tool_calls, run.calls_in_flight, len(run.interrupted)),
                        "yes" if run.results == without(undisturbed.results, run.interrupted) else "NO",
                    )
                    for run in self.runs
                ),
            ),
        ]
        if self.wrong:
            parts.append("## Not as it must be\n\n" + "\n".join(f"- {problem}" for problem in self.wrong))
        return "\n\n".join(parts) + "\n"


def _artifacts(stack: RunningStack) -> Artifacts:
    return Artifacts(stack.environment.get("ARTIFACTS_URL") or f"file://{stack.data / 'artifacts'}")


def run(
    kills: int,
    backends: str = "local",
    seed: int = 1,
    *,
    program: Program,
    minutes: float = 25.0,
    gap: float = GAP_SECONDS,
) -> Campaign:
    """Run a campaign on a stack of its own, whose logs stay if something was wrong."""
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    with contextlib.ExitStack() as after:
        for name in program.logs:
            (folder / name).touch()
        recipes = relay.write(folder)
        for name, content in program.files.items():
            (recipes / name).write_text(content.replace("{calls}", str(folder)))
        settings = {**SETTINGS, "BATCHYARD_RECIPES": str(recipes)}
        if backends == "servers":
            url = after.enter_context(postgresql.serving())
            s3_server = S3Server()
            after.callback(s3_server.close)
            s3_server.start()
            settings |= on_servers(url, s3_server)
            os.environ |= s3_server.environment  # for the artifacts that the campaign reads itself
        stack = RunningStack.start(program.models.replace("{calls}", str(folder)), **settings)
        after.callback(stack.kill)
        log.info("the stack runs at %s, its folder is %s", stack.url, stack.data)
        campaign = Campaign(stack, folder, program, seed, gap=gap)
        after.callback(campaign.close)
        campaign.run(kills, minutes)
    if campaign.wrong:
        log.warning("logs of the stack: %s; its calls: %s", stack.data / "logs", folder)
    else:
        shutil.rmtree(stack.data.parent, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    return campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.jobs", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many [100]")
    parser.add_argument("--backends", choices=WHERE, default="local", help="where state is kept [local]")
    parser.add_argument("--seed", type=int, default=1, help="of the kills [1]")
    parser.add_argument("--recipe", choices=PROGRAMS, default="stages", help="of the job [stages]")
    parser.add_argument("--items", type=int, help=f"of the job [{relay.ITEMS}; refine: {refining.ITEMS}]")
    parser.add_argument(
        "--gap", type=float, default=GAP_SECONDS, help=f"seconds before a kill, in the mean [{GAP_SECONDS}]"
    )
    parser.add_argument("--minutes", type=float, default=25.0, help="no kill comes later than this [25]")
    parser.add_argument("--report", type=Path, help="a file for the report, beside standard output")
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s")
    log.setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the stack is killed in either case
    program = PROGRAMS[options.recipe](*([] if options.items is None else [options.items]))
    campaign = run(
        options.kills, options.backends, options.seed, program=program, minutes=options.minutes, gap=options.gap
    )
    text = campaign.markdown(options.backends, options.seed)
    if options.report:
        options.report.write_text(text)
    print(text)
    return 1 if campaign.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
