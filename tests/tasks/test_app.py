"""The end of a worker that is stopped."""

from __future__ import annotations

import subprocess
import sys

import pytest

STOPPED = """
import os, signal, threading, time
import ray
from tasks import app

app.STOP_SECONDS = 60.0
signal.signal(signal.SIGTERM, lambda *_: app._stop())
joining = threading.Thread(target=ray.init, kwargs={"num_cpus": 1, "include_dashboard": False})
joining.start()
joining.join()
os.kill(os.getpid(), signal.SIGTERM)
end = time.monotonic() + 4
while time.monotonic() < end:  # a signal ends a sleep
    time.sleep(0.1)
print("goes on", flush=True)
os._exit(0)
"""


@pytest.mark.stack
def test_a_worker_that_has_joined_ray_has_more_than_three_seconds_to_give_its_segments_back() -> None:
    ended = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=360)
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["goes on"]), ended.stderr
