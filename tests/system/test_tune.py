"""A tune on a stack: its cells are real engines, what fails is recorded, and it survives a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.stacks import RunningStack
from tests.support.terminal import batchyard

ROWS = "".join(json.dumps({"prompt": f"word {number}"}) + "\n" for number in range(24))
NO_MODULE = "ModuleNotFoundError: No module named 'flash_attn'"


def test_a_tune_measures_its_cells_records_what_fails_and_goes_on_after_a_kill(
    faulty: RunningStack, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS)
    arguments = ["tune", "rows.jsonl", "--model", "slow", "--repeats", "1", "--data", str(faulty.data)]
    arguments += ["--set", "max_in_flight=4,24", "--set", f'engine_args.start_error=null,"{NO_MODULE}"']
    arguments += ["--slo", "p95<=60s,errors<=5%", "--budget", "20m", "warm_up=1"]
    dry_run = batchyard(*arguments, "--dry-run", folder=tmp_path)
    assert dry_run.returncode == 0, dry_run.stderr
    assert "slow+max_in_flight-4+start_error-null" in dry_run.stdout
    command = [str(Path(sys.executable).parent / "batchyard"), *arguments]
    first = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)  # it is killed

    def jobs(**query: str) -> list[dict[str, Any]]:
        page: Any = faulty.client.get("/jobs", cast_to=object, options={"params": query | {"limit": "100"}})
        return list(page["data"])

    def ended(tune: dict[str, Any]) -> dict[str, dict[str, Any]]:
        own = jobs(parent_id=tune["id"])
        return {job["id"]: job for job in own if job["status"] == "completed"}

    try:
        deadline = time.monotonic() + 360
        while not (tunes := jobs(recipe="tune")) or not (before := ended(tunes[0])):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        first.kill()
        first.wait()
    (tune,) = tunes
    os.kill(faulty.processes("webhooks")[0].pid, signal.SIGKILL)
    printed = batchyard(*arguments, "--artifacts", "artifacts", folder=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert f"taking up job {tune['id']}" in printed.stderr
    assert f"2 of 4 cells completed, 2 failed (simulated): {tune['id']}" in printed.stdout
    assert "[models.slow]" in printed.stdout
    after = ended(tune)
    assert {job_id: after[job_id] for job_id in before} == before
    results = [json.loads(line) for line in (tmp_path / "artifacts/results.jsonl").read_text().splitlines()]
    cells = {line["custom_id"]: line["result"]["cell"] for line in results}
    by_state = {state: [cell for cell in cells.values() if cell["state"] == state] for state in ("completed", "failed")}
    narrow, wide = sorted(by_state["completed"], key=lambda cell: cell["overrides"]["max_in_flight"])
    for cell in (narrow, wide):
        (repeat,) = cell["repeats"]
        assert (repeat["rows"], repeat["ok"], repeat["errors"]) == (24, 24, {})
        assert cell["simulated"] and cell["derived"].startswith("slow~")
        assert cell["peak_memory"] > 10_000_000 and cell["capacity"] == 128
        assert cell["start_seconds"] is not None
    # 24 requests of 0.2 s in six turns of four. Reading the job from its records meanwhile may cost it a second.
    assert narrow["repeats"][0]["seconds"] > 0.2
    for cell in by_state["failed"]:
        assert NO_MODULE in cell["error"]
    report = (tmp_path / "artifacts/report.md").read_text()
    assert "dependency" in report
    document = json.loads((tmp_path / "artifacts/tune.json").read_text())
    assert document
