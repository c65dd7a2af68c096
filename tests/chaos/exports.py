"""Kills at random over exports: `python -m tests.chaos.exports --rows 200000 --kills 10 --seed 1`.

A batch of engine `echo` is exported to a folder, to S3 and to PostgreSQL. Meanwhile processes are killed with -9, S3 is
stopped, and connections to the database are ended. A reader that polls must never see a part of a part. In the end
every row is at each place once.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import psutil
import pyarrow.parquet as pq
from botocore.exceptions import BotoCoreError
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from batchyard.statuses import TERMINAL
from store.database import Database
from store.records import Batch
from tests.chaos.deployment import versions
from tests.chaos.jobs import processes_of
from tests.chaos.report import table
from tests.support import postgresql
from tests.support.s3 import BUCKET, S3Server
from tests.support.stacks import RunningStack, a_chat

TARGETS = ("folder", "S3", "PostgreSQL")
"""In the order of the steps."""
PARTITION = 10_000
GAP_SECONDS = 2.0
"""Seconds that an export runs before a kill, in the mean."""
END_SECONDS = 900.0
POLL_SECONDS = 0.2
_END_COPY = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'COPY%'"

log = logging.getLogger(__name__)


def rows_of_part(number: int, rows: int) -> int:
    return min(PARTITION, rows - number * PARTITION)


@dataclass
class Target:
    """What was seen of an export: its kills by kind, how often it was read, and what was wrong then."""

    kills: Counter[str] = field(default_factory=Counter)
    polls: int = 0
    wrong: list[str] = field(default_factory=list)
    memory_mib: float = 0.0
    seconds: float = 0.0


class Places:
    """The places that the batch is exported to, as a client reads them."""

    def __init__(self, folder: Path, s3_server: S3Server, database: str) -> None:
        self.folder = folder
        self.s3_server = s3_server
        self.bucket = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
        self.database = create_engine(database, isolation_level="AUTOCOMMIT")
        self._seen: dict[str, tuple[Any, list[str]]] = {}

    def files(self, target: str, name: str) -> dict[str, list[str]]:
        """Return the custom_ids of each part that can be seen, by its name; [] of `_SUCCESS`. Raises OSError."""
        if target == "folder":
            paths = [path for path in (self.folder / name).glob("*") if not path.name.startswith(".")]
            stats = {path: path.stat() for path in paths}
            found = {path.name: (stat.st_mtime_ns, stat.st_ino) for path, stat in stats.items()}
        else:
            listed = self.bucket.find(f"{BUCKET}/out/{name}", detail=True)
            found = {path.rpartition("/")[2]: (info["ETag"], info["LastModified"]) for path, info in listed.items()}
        for file, version in found.items():
            key = f"{target}/{name}/{file}"
            if self._seen.get(key, (None,))[0] != version:
                self._seen[key] = version, [] if file == "_SUCCESS" else self._read(target, name, file)
        return {file: self._seen[f"{target}/{name}/{file}"][1] for file in found}

    def _read(self, target: str, name: str, file: str) -> list[str]:
        if target == "folder":
            lines = (self.folder / name / file).read_bytes().splitlines()
            return [json.loads(line)["custom_id"] for line in lines]
        content = io.BytesIO(self.bucket.cat_file(f"{BUCKET}/out/{name}/{file}"))
        return list(pq.read_table(content, columns=["custom_id"])["custom_id"].to_pylist())

    def query(self, statement: str, **values: Any) -> list[Any]:
        with self.database.connect() as connection:
            return list(connection.execute(text(statement), values))


class Campaign:
    """Exports one batch under kills."""

    def __init__(self, stack: RunningStack, places: Places, temporary: Path, rows: int, seed: int, gap: float) -> None:
        self._stack = stack
        self._places = places
        self._temporary = temporary
        self._rows = rows
        self._random = random.Random(seed)
        self._gap = gap
        self._database = Database(stack.database_url)
        self._killed_at = 0.0
        self._batch_id = ""
        self._ended = threading.Event()
        self.targets = {name: Target() for name in TARGETS}

    @property
    def wrong(self) -> list[str]:
        return [f"{name}: {problem}" for name, target in self.targets.items() for problem in target.wrong]

    def run(self, name: str, kills: int) -> None:
        """Submit the batch, kill so many times while it is exported, and count its rows."""
        steps = [
            {"step": "export", "partition": PARTITION, "url": url, **options}
            for url, options in (
                (f"file://{self._places.folder}/{{name}}", {"format": "jsonl"}),
                (f"s3://{BUCKET}/out/{{name}}", {"format": "parquet"}),
                ("table://warehouse/public/exported", {}),
            )
        ]
        lines = (json.dumps(a_chat(f"r-{number}", f"text {number}")) + "\n" for number in range(self._rows))
        batch = self._stack.submit("".join(lines), extra_body={"post_process": steps}, metadata={"name": name})
        self._batch_id = batch.id
        threads = [threading.Thread(target=run, args=(name,)) for run in (self._read, self._measure)]
        for thread in threads:
            thread.start()
        try:
            for number, target in enumerate(TARGETS):
                self._kill(target, number, (kills + number) // len(TARGETS))
            self._wait(len(TARGETS), END_SECONDS)
            batch = self._stack.wait(self._stack.client.batches.retrieve(batch.id), seconds=END_SECONDS)
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()
        failed = [entry for entry in batch.batchyard["post_process"] if entry["status"] != "completed"]
        if batch.status != "completed" or failed:
            self.targets[TARGETS[0]].wrong.append(f"the batch is {batch.status}, {failed}")
        self._count(name)

    def _count(self, name: str) -> None:
        expected = Counter(f"r-{number}" for number in range(self._rows))
        for target in ("folder", "S3"):
            found = self._places.files(target, name)
            if "_SUCCESS" not in found or Counter(id_ for ids in found.values() for id_ in ids) != expected:
                self.targets[target].wrong.append("its files do not have each row once")
        rows = self._places.query("SELECT custom_id FROM exported WHERE batch_id = :id", id=self._batch_id)
        if Counter(row[0] for row in rows) != expected:
            self.targets["PostgreSQL"].wrong.append("the table does not have each row once")

    # What others see meanwhile.

    def _read(self, name: str) -> None:
        """Poll all places until the batch has ended: a part is there whole or not at all."""
        parts = -(-self._rows // PARTITION)
        while not self._ended.wait(POLL_SECONDS):
            for kind in ("folder", "S3"):
                target = self.targets[kind]
                try:
                    found = self._places.files(kind, name)
                except (OSError, BotoCoreError):  # S3 is away
                    continue
                except (ValueError, KeyError) as error:
                    target.wrong.append(f"a file cannot be read: {type(error).__name__}: {error}")
                    continue
                target.polls += 1
                counts = {file: len(ids) for file, ids in found.items() if file != "_SUCCESS"}
                for file, count in counts.items():
                    if count != rows_of_part(int(file[5:10]), self._rows):
                        target.wrong.append(f"{file} had {count} rows")
                if "_SUCCESS" in found and len(counts) != parts:
                    target.wrong.append(f"_SUCCESS was there with {len(counts)} parts")
            target = self.targets["PostgreSQL"]
            with contextlib.suppress(DBAPIError):  # the table is not there yet, or the connection was ended
                counted = "SELECT count(*), count(DISTINCT line) FROM exported WHERE batch_id = :id"
                ((count, distinct),) = self._places.query(counted, id=self._batch_id)
                target.polls += 1
                if count != distinct or (count % PARTITION and count != self._rows):
                    target.wrong.append(f"the table had {count} rows of {distinct} lines")

    def _measure(self, _name: str) -> None:
        """Note the memory of the process that exports."""
        while not self._ended.wait(POLL_SECONDS):
            with contextlib.suppress(psutil.Error, IndexError):
                step, pid = self._exporting()
                target = self.targets[TARGETS[step]]
                target.seconds += POLL_SECONDS * any(self._folders())
                if pid is not None and self._is_writing():
                    target.memory_mib = max(target.memory_mib, psutil.Process(pid).memory_info().rss / 2**20)

    # Kills.

    def _exporting(self) -> tuple[int, int | None]:
        """Return how many steps have completed, and the process that runs the next one."""
        with self._database.read() as session:
            batch = session.get_one(Batch, self._batch_id)
        completed = sum(entry.get("status") == "completed" for entry in batch.post_process)
        pid = int(batch.holder.split("/")[1]) if batch.holder and batch.status == "finalizing" else None
        return completed, pid if pid is not None and psutil.pid_exists(pid) else None

    def _is_writing(self) -> bool:
        """True if a part was written since the last kill."""
        changes = (path.stat().st_ctime for path in self._folders())
        return max(changes, default=0.0) > self._killed_at

    def _folders(self) -> Iterator[Path]:
        return self._temporary.glob("batchyard-export-*")

    def _wait(self, steps: int, seconds: float, *, writing: bool = False) -> bool:
        """Wait until `steps` have completed; or, True, until a part is written of the one after `steps`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            completed, pid = self._exporting()
            if writing and completed == steps and pid is not None and self._is_writing():
                return True
            if completed > steps or (not writing and completed == steps):
                return False
            if (status := self._status()) in TERMINAL:
                raise RuntimeError(f"the batch is {status}")
            time.sleep(0.05)
        raise RuntimeError(f"no step moved on for {seconds:.0f} s; see {self._stack.data}")

    def _status(self) -> str:
        with self._database.read() as session:
            return session.get_one(Batch, self._batch_id).status

    def _kill(self, target: str, step: int, times: int) -> None:
        """Interrupt the export to a target so many times, unless it ends before."""
        kinds = ["housekeeper", "exporting process", "housekeeper and worker"]
        kinds += {"folder": [], "S3": ["S3 away"], "PostgreSQL": ["connections"]}[target]
        while self.targets[target].kills.total() < times and self._wait(step, END_SECONDS, writing=True):
            time.sleep(self._random.uniform(0.0, 2 * self._gap))
            completed, pid = self._exporting()
            if completed != step or pid is None:
                continue
            kind = self._random.choice(kinds) if self.targets[target].kills else kinds[-1]
            if kind == "S3 away":
                self._places.s3_server.stop()
                time.sleep(3)
                self._places.s3_server.start()
            elif kind == "connections":
                if not any(self._places.query(_END_COPY) or time.sleep(0.02) for _ in range(500)):
                    continue
            else:
                killed = [psutil.Process(pid)] if kind == "exporting process" else []
                for name in kind.split(" and ") if not killed else ():
                    killed += processes_of(name, self._stack, self._random)
                for process in killed:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            self._killed_at = time.time()
            self.targets[target].kills[kind] += 1
            log.info("%s: %s", target, kind)

    def close(self) -> None:
        self._database.close()

    def markdown(self, seed: int) -> str:
        """Return the report."""
        names = sorted({kind for target in self.targets.values() for kind in target.kills})
        parts = [
            f"# Exports of {self._rows:,} rows under kills, seed {seed}",
            "Versions: " + ", ".join(f"{name} {version}" for name, version in versions().items()) + ".",
            table(
                ["target", *names, "seconds", "polls of the reader", "MiB of the exporting process, at most"],
                (
                    (
                        *(name, *(target.kills[kind] for kind in names), f"{target.seconds:.0f}", target.polls),
                        f"{target.memory_mib:.0f}",
                    )
                    for name, target in self.targets.items()
                ),
            ),
        ]
        if self.wrong:
            parts.append("## Not as it must be\n\n" + "\n".join(f"- {problem}" for problem in self.wrong))
        return "\n\n".join(parts) + "\n"


def run(rows: int, kills: int, seed: int = 1, gap: float = GAP_SECONDS) -> Campaign:
    """Run a campaign on a stack of its own, whose logs stay if something was wrong."""
    folder = Path(tempfile.mkdtemp(prefix="by-"))
    (temporary := folder / "tmp").mkdir()
    with contextlib.ExitStack() as after:
        database = postgresql.create_database(after.enter_context(postgresql.serving()))
        s3_server = S3Server()
        after.callback(s3_server.close)
        s3_server.start()
        os.environ |= s3_server.environment  # for the reader, too
        stack = RunningStack.start(
            '[models.echo]\nengine = "echo"\n',
            TMPDIR=str(temporary),
            BATCHYARD_ALLOW_SIMULATED="1",
            BATCHYARD_LEASE_SECONDS="10",
            BATCHYARD_MAX_REQUESTS=str(rows),
            BATCHYARD_MAX_FILE_BYTES=str(2**30),
            BATCHYARD_OUTPUT_PREFIXES=f"file://{folder}/out/, s3://{BUCKET}/out/, table://warehouse/public/",
            BATCHYARD_OUTPUT_DATABASES=f"warehouse={database}",
        )
        after.callback(stack.kill)
        log.info("the stack runs at %s, its folder is %s", stack.url, stack.data)
        campaign = Campaign(stack, Places(folder / "out", s3_server, database), temporary, rows, seed, gap)
        after.callback(campaign.close)
        campaign.run("all", kills)
    if campaign.wrong:
        log.warning("logs of the stack: %s", stack.data / "logs")
    else:
        shutil.rmtree(stack.data.parent, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    return campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.exports", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="of the batch [200000]")
    parser.add_argument("--kills", type=int, default=10, help="how many [10]")
    parser.add_argument("--seed", type=int, default=1, help="of the kills [1]")
    parser.add_argument("--gap", type=float, default=GAP_SECONDS, help=f"seconds before a kill [{GAP_SECONDS}]")
    parser.add_argument("--report", type=Path, help="a file for the report, beside standard output")
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s")
    log.setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the stack is killed in either case
    campaign = run(options.rows, options.kills, options.seed, options.gap)
    text = campaign.markdown(options.seed)
    if options.report:
        options.report.write_text(text)
    print(text)
    return 1 if campaign.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
