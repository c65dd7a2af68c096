"""The logs of a stack, read for some batches: in order of time, with their engines' words, and no line per poll."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from batchyard.local.log_lines import LogLine, LogLines, without_starts

BATCH, JOB = "batch_1", "job_1"
EPOCH = datetime(2026, 11, 25, 8, 0, 0, tzinfo=UTC).timestamp()


def entry(second: float, message: str, **fields: Any) -> str:
    time = datetime.fromtimestamp(EPOCH + second, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": time, "level": "info", "logger": "x", "message": message, **fields}) + "\n"


def local(second: float) -> str:
    """The time as vLLM writes it."""
    return datetime.fromtimestamp(EPOCH + second).strftime("%m-%d %H:%M:%S")


class Folders:
    def __init__(self, folder: Path) -> None:
        self.logs, self.ray = folder / "logs", folder / "ray"
        self.session = self.ray / "session_2026-11-25_08-00-00_1_1" / "logs"
        for made in (self.logs, self.session):
            made.mkdir(parents=True)
        (self.ray / "session_latest").symlink_to(self.session.parent)
        self.reader = LogLines(self.logs, self.ray)

    def write(self, name: str, *lines: str) -> None:
        folder = self.session if name.startswith("worker-") else self.logs
        with (folder / name).open("a") as file:
            file.writelines(lines)

    def actor(self, name: str, model: str, second: float = 0) -> None:
        self.write(f"worker-{name}.err", ":job_id:01\n", ":actor_name:EngineActor\n")
        self.write(f"worker-{name}.err", entry(second, "engine starts", model=model, engine="vllm"))

    def lines(self, *ids: str, since: float = 0, until: float = 3600) -> list[LogLine]:
        return self.reader.read(ids or (BATCH,), ("mini",), since=EPOCH + since, until=EPOCH + until)

    def messages(self, *ids: str, since: float = 0, until: float = 3600) -> list[str]:
        return [line.fields["message"] for line in self.lines(*ids, since=since, until=until)]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def test_lines_of_all_processes_are_in_order_of_time(folders: Folders) -> None:
    folders.write("worker.log", entry(2, "second", batch_id=BATCH), entry(4, "fourth", batch_id=BATCH))
    folders.write("worker.log.1", entry(1, "first", batch_id=BATCH))
    folders.write("housekeeper.log", entry(3, "third", batch_id=BATCH), entry(3, "of another", batch_id="batch_2"))
    folders.write("housekeeper.log", f"no JSON, {BATCH}\n", f'{{"cut off: {BATCH}\n')
    assert folders.messages() == ["first", "second", "third", "fourth"]


def test_lines_of_a_job_are_those_of_its_batches_too(folders: Folders) -> None:
    folders.write("webhooks.log", entry(2, "of the job", job_id=JOB))
    folders.write("worker.log", entry(1, "of its batch", batch_id=BATCH))
    assert folders.messages(JOB, BATCH) == ["of its batch", "of the job"]


def test_polls_are_left_out_and_changes_and_refusals_are_not(folders: Folders) -> None:
    for second, (message, status) in enumerate(
        [(f"GET /v1/batches/{BATCH}", 200), (f"POST /v1/batches/{BATCH}/cancel", 200), (f"GET /batches/{BATCH}", 500)]
    ):
        folders.write("web.log", entry(second, message, logger="webapp", status=status))
    assert folders.messages() == [f"POST /v1/batches/{BATCH}/cancel", f"GET /batches/{BATCH}"]


def test_what_the_engines_of_its_models_write_stands_between(folders: Folders) -> None:
    folders.actor("a", "mini")
    folders.actor("b", "other")
    core = "\x1b[0;36m(EngineCore pid=7)\x1b[0;0m "
    folders.write("worker-a.err", f"{core}ERROR {local(3)} [core.py:94] engine failed\n", f"{core}ValueError: no\n")
    folders.write("worker-a.out", f"INFO {local(1)} [llm.py:1] loads\n", "  0%|   \r100%|###|\n")
    folders.write("worker-b.err", f"INFO {local(1)} of another model\n")
    folders.write("worker.log", entry(2, "segment started", batch_id=BATCH))
    assert [(line.fields["file"], line.fields["level"], line.fields["message"]) for line in folders.lines()] == [
        ("engine", "info", "engine starts"),
        ("engine", "info", f"INFO {local(1)} [llm.py:1] loads"),
        ("engine", "info", "100%|###|"),
        ("worker.log", "info", "segment started"),
        ("engine", "error", f"(EngineCore pid=7) ERROR {local(3)} [core.py:94] engine failed"),
        ("engine", "info", "(EngineCore pid=7) ValueError: no"),
    ]


def test_what_an_engine_wrote_before_and_after_the_batch_is_left_out(folders: Folders) -> None:
    folders.actor("a", "mini")
    folders.write("worker-a.out", *(f"INFO {local(second)} line {second}\n" for second in range(5)))
    assert [text[-6:] for text in folders.messages(since=2, until=3)] == ["line 2", "line 3"]


def test_no_line_shows_a_prompt_that_vllm_logs(folders: Folders) -> None:
    folders.actor("a", "mini")
    folders.write("worker-a.err", f"INFO {local(1)} [logger.py:40] Received request x: prompt: 'secret', params: …\n")
    assert folders.messages() == ["engine starts"]


def test_each_reading_has_what_is_new_in_whole_lines_also_after_a_file_was_cut(folders: Folders) -> None:
    line = entry(2, "second", batch_id=BATCH)
    folders.write("worker.log", entry(1, "first", batch_id=BATCH), line[:20])
    assert folders.messages() == ["first"]
    folders.write("worker.log", line[20:])
    assert folders.messages() == ["second"]
    assert folders.messages() == []
    (folders.logs / "worker.log").write_text("")
    folders.write("worker.log", entry(3, "third", batch_id=BATCH))
    assert folders.messages() == ["third"]


def test_an_engine_whose_model_is_known_later_is_read_from_its_start(folders: Folders) -> None:
    folders.actor("a", "mini")
    assert folders.reader.read({BATCH}, (), since=EPOCH) == []
    assert folders.messages() == ["engine starts"]


def test_what_an_engine_prints_while_it_starts_can_be_left_out_but_for_warnings_and_a_start_that_fails(
    folders: Folders,
) -> None:
    folders.actor("a", "mini", 1)
    folders.write("worker-a.out", f"INFO {local(2)} loads weights\n", f"WARNING {local(3)} old driver\n")
    shown = [line.fields["message"] for line in without_starts(folders.lines())]
    assert shown == ["engine starts", f"INFO {local(2)} loads weights", f"WARNING {local(3)} old driver"]
    folders.reader = LogLines(folders.logs, folders.ray)
    folders.write("worker-a.err", entry(9.5, "engine started", model="mini"))
    folders.write("worker-a.out", f"INFO {local(30)} preempted\n")
    shown = [line.fields["message"] for line in without_starts(folders.lines())]
    assert shown == ["engine starts", f"WARNING {local(3)} old driver", "engine started", f"INFO {local(30)} preempted"]
