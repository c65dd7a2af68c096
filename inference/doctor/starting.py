"""A start of an engine, and one answer to each of its endpoints, in a separate process.

`python -m inference.doctor.starting` reads a ModelSpec as JSON from standard input. Its last line is the outcome.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from batchyard.endpoints.catalog import ENDPOINTS
from batchyard.errors import BatchyardError
from batchyard.models import ModelSpec
from inference.doctor import company
from inference.doctor.folder import Finding
from inference.engine import JobEngine
from inference.engines import registry

ANSWER_SECONDS = 120.0
COMPANY_SECONDS = 900.0
"""Limit of the test of `reproducible`, after the start."""
REPRODUCIBLE = "--reproducible"
MARK = "batchyard-doctor: "


def start(spec: ModelSpec, seconds: float, *, reproducible: bool = False) -> list[Finding]:
    """Start the model's engine, ask it, and return the findings within `seconds`.

    `reproducible`: also test that answers do not depend on other requests, in at most COMPANY_SECONDS more.
    """
    if issubclass(registry.capabilities(spec.engine), JobEngine):
        reason = f"engine {spec.engine} starts within a run; submit a small batch"
        return [Finding(spec.name, "start", "not checked", reason)]
    command = [sys.executable, "-m", "inference.doctor.starting", *([REPRODUCIBLE] if reproducible else [])]
    seconds += COMPANY_SECONDS if reproducible else 0
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            child.communicate(spec.model_dump_json().encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            detail = f"not within {seconds:g} s"
            return [Finding(spec.name, "start", "failed", detail, "raise BATCHYARD_ENGINE_START_TIMEOUT")]
        finally:
            with contextlib.suppress(ProcessLookupError):  # all of them have ended
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    outcome = next((line for line in reversed(lines) if line.startswith(MARK)), None)
    if outcome is None:
        ending = f"ended by {signal.Signals(-child.returncode).name}" if child.returncode < 0 else "ended"
        last = next((line for line in reversed(lines) if line.strip()), "it wrote nothing")
        detail = f"its process {ending} (exit code {child.returncode}): {last}"
        return [Finding(spec.name, "start", "failed", detail, "see docs/operations.md, What to do when")]
    return [Finding(**entry) for entry in json.loads(outcome.removeprefix(MARK))]


async def _try(spec: ModelSpec, *, reproducible: bool) -> list[Finding]:
    engine = registry.engine_class(spec.engine)(spec, ANSWER_SECONDS)
    began = time.monotonic()
    try:
        await engine.start()
    except BatchyardError as error:
        why = " ".join(error.message.split())
        return [Finding(spec.name, "start", "failed", why, "change what it names in models.toml")]
    findings = [Finding(spec.name, "start", "ok", f"{time.monotonic() - began:.1f} s")]
    for endpoint in spec.endpoints:
        began = time.monotonic()
        answer = await engine.answer(endpoint, {"model": spec.name, **ENDPOINTS[endpoint].example})
        if answer.status_code == 200:
            findings.append(Finding(spec.name, endpoint, "ok", f"answered in {time.monotonic() - began:.1f} s"))
        else:
            refusal = answer.error or (answer.body or {}).get("error") or {}
            reason = str(refusal.get("message") or answer.status_code)
            remedy = "take it out of `endpoints`, or mend what the reason names"
            findings.append(Finding(spec.name, endpoint, "failed", reason, remedy))
    if reproducible:
        findings.append(await company.check(engine, COMPANY_SECONDS))
    await engine.stop()
    return findings


if __name__ == "__main__":
    given = ModelSpec.model_validate_json(sys.stdin.read())
    checked = asyncio.run(_try(given, reproducible=REPRODUCIBLE in sys.argv))
    print(f"\n{MARK}{json.dumps([vars(finding) for finding in checked])}", flush=True)
    os._exit(0)  # an engine's threads and processes may not end by themselves
