"""The server of a command: a running one, or a local stack until the command ends."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from batchyard.client import api
from batchyard.client.address import server_runs
from batchyard.client.api import ApiClient
from batchyard.errors import BatchyardError, ConfigurationError
from batchyard.local_state import local_state

END_SECONDS = 40


@contextmanager
def server(data: Path, models: Path) -> Iterator[ApiClient]:
    """Yield a client of the running server, or of a new local stack (see `stack`)."""
    with nullcontext(api.connect(data)) if server_runs(data) else stack(data, models) as connected:
        yield connected


@contextmanager
def stack(data: Path, models: Path) -> Iterator[ApiClient]:
    """Yield a client of the stack on `data`; start one for the block if none runs."""
    import subprocess

    from batchyard import models as models_file
    from batchyard import plugins
    from batchyard.local import process

    if local_state(data):
        yield api.connect(data)
        return
    plugins.require_server()
    models_file.read(models)  # before there is a data folder: a command in the wrong place leaves none
    logs = data / "logs"
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"data folder {data}: {error.strerror}; name another with --data") from error
    arguments = ["--port", "0", "--flower-port", "0", "--data", str(data), "--models", str(models)]
    log = logs / "up.log"
    process.rotate(log)
    with log.open("ab") as output:
        # In a session of its own, so that Ctrl-C reaches only this process, which then ends the stack.
        up = subprocess.Popen(
            [sys.executable, "-P", "-m", "batchyard.cli", "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=process.prepare(signal.SIGTERM),
        )
    try:
        while local_state(data).get("pid") != up.pid:
            if up.poll() is not None:
                reason = process.last_line(log).removeprefix("batchyard: ")
                raise (ConfigurationError if up.returncode == 2 else BatchyardError)(reason)
            time.sleep(0.1)
        connected = api.connect(data)
        connected.stays = False
        yield connected
    finally:
        up.terminate()
        try:
            up.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            up.kill()
            up.wait()
            process.kill(process.tagged(str(data.resolve())))
