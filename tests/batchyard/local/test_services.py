"""The services' command lines follow the settings, and the process becomes the named service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

import celeryconfig
from batchyard import queues, settings
from batchyard.local import ports, services
from tests.support.rows import until

MODULE = [sys.executable, "-m", "batchyard.local.services"]


def test_one_process_runs_all_segments_that_the_settings_allow_draining_ones_included() -> None:
    argv = services.worker(settings.load(max_segments=5, log_level="debug", name="north"))
    assert {"--pool=threads", f"--concurrency={queues.segment_threads(5)}"} <= set(argv)
    assert {"--queues=batch_job_queue", "--loglevel=DEBUG", "--hostname=worker-%h@north", "--without-gossip"} <= set(
        argv
    )


def test_what_is_done_for_batches_beside_their_segments_has_processes_of_its_own() -> None:
    argv = services.housekeeper(settings.load(max_segments=5))
    assert {"--concurrency=5", "--queues=post,housekeeping", "--hostname=housekeeper-%h@batchyard"} <= set(argv)
    assert "--pool=threads" not in argv


def test_every_queue_that_tasks_are_routed_to_has_a_worker() -> None:
    in_force = settings.load()
    consumed = [
        name
        for argv in (services.worker(in_force), services.housekeeper(in_force), services.webhooks(in_force))
        for option in argv
        if option.startswith("--queues=")
        for name in option.removeprefix("--queues=").split(",")
    ]
    assert sorted(consumed) == sorted(queues.NAMES) == sorted(queue.name for queue in celeryconfig.task_queues)
    assert f"--concurrency={queues.WEBHOOK_THREADS + queues.JOB_THREADS}" in services.webhooks(in_force)


@pytest.mark.parametrize(("host", "bind"), [("0.0.0.0", "0.0.0.0:8000"), ("::1", "[::1]:8000")])
def test_the_web_app_listens_on_either_kind_of_address(host: str, bind: str) -> None:
    assert f"--bind={bind}" in services.web(host, 8000)


def test_beat_keeps_its_state_in_the_data_folder_unless_told_otherwise(tmp_path: Path) -> None:
    in_force = settings.load(data=tmp_path)
    assert f"--schedule={tmp_path}/beat-schedule" in services.beat(in_force)
    assert "--schedule=elsewhere" in services.beat(in_force, Path("elsewhere"))


@pytest.mark.stack
def test_the_process_becomes_the_service_and_takes_its_signals(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text("[models.echo]\nengine = 'echo'\n")
    environment = {"BATCHYARD_DATA": str(tmp_path), "BATCHYARD_MODELS": str(tmp_path / "models.toml")}
    environment |= {"BATCHYARD_ALLOW_SIMULATED": "1", "DATABASE_URL": f"sqlite:///{tmp_path}/new.db"}
    held = ports.Port("127.0.0.1", 0)  # until the service listens there nobody else can have it
    held.share()
    command = [*MODULE, "web", f"--port={held.number}"]
    with closing(held), subprocess.Popen(command, env={**os.environ, **environment}) as web:
        try:
            until(lambda: web.poll() is not None or ports.answers("127.0.0.1", held.number))
            assert httpx.get(f"http://127.0.0.1:{held.number}/healthz", timeout=60).status_code == 200
            web.send_signal(signal.SIGTERM)
            assert web.wait(180) == 0
        finally:
            web.kill()


@pytest.mark.stack
def test_a_setting_that_cannot_be_used_is_named() -> None:
    wrong = {**os.environ, "BATCHYARD_MAX_SEGMENTS": "many"}
    result = subprocess.run([*MODULE, "worker"], env=wrong, capture_output=True, text=True, timeout=180)
    assert result.returncode == 2
    assert result.stderr.startswith('batchyard: BATCHYARD_MAX_SEGMENTS: "many" is not a whole number')


@pytest.mark.long
def test_the_services_that_run_no_task_load_little() -> None:
    heavy = {"flask", "pandas", "pyarrow", "ray", "torch", "openai", "alembic"}
    for module, more in (("webapp.gateway.server", {"celery"}), ("tasks.celery_app", {"sqlalchemy", "numpy"})):
        code = f"import sys, {module}; print({heavy | more} & sys.modules.keys() or 'none')"
        printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert printed.strip() == "none", module


@pytest.mark.long
def test_a_service_starts_without_what_only_some_of_its_work_needs() -> None:
    heavy = {"alembic", "pandas", "ray", "torch", "openai"}
    code = f"import sys, tasks.app, webapp; print({heavy} & sys.modules.keys() or 'none')"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "none"
