"""The wire between the gateway and the engines' live servers: what both sides name, and do.

A request is its body, posted to the path of its endpoint at the server's base URL, with the token as a bearer token and
the headers below. An answer has what was used in the header REPORT; a stream has it in its last line, a comment, over
which clients of server-sent events pass.
"""

import json
import resource
from typing import Any, Literal

Tier = Literal["default", "flex"]
"""How soon a live request is answered: before those of batches, or in its turn among them."""
TIERS: tuple[Tier, ...] = ("default", "flex")
PROJECT = "x-batchyard-project"
TIER = "x-batchyard-tier"
WAIT_SECONDS = "x-batchyard-wait-seconds"
"""How long a flex request may wait to enter the engine."""
REQUEST = "x-batchyard-request"
"""The request's id, by which it can be ended: DELETE on REQUESTS/<id> answers with its report."""
REQUESTS = "/live/requests"
HEALTH = "/live/health"
"""A GET there is answered by whoever is not hanging."""
REPORT = "x-batchyard-report"
REPORT_COMMENT = b": batchyard "
FEW = 4096
"""Fewer open files than that refuse connections under a load that one machine may well have."""
STOPPING = "engine_stopping"
"""The error code of a request that never entered the engine, since that is about to end."""


def split_report(data: bytes) -> tuple[bytes, dict[str, Any] | None]:
    """Return a piece of a stream without its report, and the report; None if it has none.

    The server sends the report apart from all else, so it is whole in what a connection gives last.
    """
    at = data.rfind(REPORT_COMMENT)
    if at < 0 or (at > 0 and data[at - 1 : at] != b"\n"):
        return data, None
    line = data[at + len(REPORT_COMMENT) :].strip()
    try:
        return data[:at], json.loads(line)
    except ValueError:
        return data, None


def allow_connections() -> None:
    """Let this process have as many connections as it may: shells start processes with a lower limit than that."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def few_connections() -> int | None:
    """Return the limit of open files that `allow_connections` cannot pass, if that is low; else None."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if most == resource.RLIM_INFINITY or most >= FEW else most
