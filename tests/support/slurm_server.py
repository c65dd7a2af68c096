"""A server of a SLURM job, as a program: `python -m tests.support.slurm_server PORT MODEL SECONDS`.

It repeats the last message of each chat after so many seconds, and prints it. At SIGTERM it breaks off what it has.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from typing import Any

from tests.support.servers import Reply, Server, listening


@dataclass
class PrintingServer(Server):
    """Prints what it is asked."""

    def chosen(self, body: dict[str, Any]) -> Reply:
        with self.lock:
            print("asked", body["messages"][-1]["content"], flush=True)
        return super().chosen(body)


if __name__ == "__main__":
    port, model, seconds = sys.argv[1:]
    with listening(PrintingServer(host="0.0.0.0", port=int(port), serves=model, latency=float(seconds))):
        signal.pause()
