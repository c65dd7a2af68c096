"""gunicorn's configuration of the web app: how long one of its threads waits for a client.

The gateway waits for slow clients in the web app's place. This is for a web app without one.
"""

import socket
import struct
from typing import Any

from batchyard.settings import load

FIRST_SECONDS = 0.2
"""A thread waits so long for the first byte of a connection. After that no thread does."""


def post_worker_init(worker: Any) -> None:
    """Limit the waits of all connections, which have the options of the sockets that they come by."""
    from gunicorn.workers import gthread  # type: ignore[import-untyped]  # of the server

    gthread.DEFAULT_WORKER_DATA_TIMEOUT = FIRST_SECONDS  # it has no setting
    limit = struct.pack("ll", load().transfer_pause_seconds, 0)
    for listener in worker.sockets:
        if listener.sock.family != socket.AF_UNIX:  # that one is the gateway's
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                listener.sock.setsockopt(socket.SOL_SOCKET, option, limit)
