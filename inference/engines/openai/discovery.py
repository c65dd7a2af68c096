"""Endpoint files: what a server's job writes into a shared folder to say where the server is (as under SLURM)."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, Field, ValidationError

MAX_BYTES = 65536

log = logging.getLogger(__name__)


class EndpointFile(BaseModel):
    """The content of a `*.json` file. Other keys are of no interest here.

    Attributes:
        host: a name or an address.
        model: the name that the server knows its model by.
        started_at: Unix seconds, or ISO 8601 (UTC if it names no zone).
    """

    host: str = Field(pattern=r"^([A-Za-z0-9._-]+|[0-9A-Fa-f:.]+)$")
    port: int = Field(ge=1, le=65535)
    model: str
    started_at: datetime


class DiscoveredServer(NamedTuple):
    """A server: base URL, and Unix time of its start. One that is started again at the same place is another."""

    url: str
    started_at: float


class Folder:
    """The endpoint files of one folder that are for one model."""

    def __init__(self, path: Path, model: str) -> None:
        self._path = path
        self._model = model
        self._read: dict[Path, tuple[tuple[int, int], DiscoveredServer | None]] = {}
        self._listed = True

    def servers(self) -> frozenset[DiscoveredServer]:
        """The servers whose files are there now. A file is read again once it has changed, a broken one logged once.

        A folder that cannot be listed keeps the servers it had; one that does not exist has none.
        """
        try:
            paths = [path for path in self._path.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:
            paths = []
        except OSError as error:
            if self._listed:
                log.warning("endpoint folder cannot be listed: %s", error)
            self._listed = False
            paths = list(self._read)
        else:
            self._listed = True
        known, self._read = self._read, {}
        for path in paths:
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # just now
            except OSError:
                mark = known[path][0] if path in known else (0, 0)
            else:
                mark = (status.st_ctime_ns, status.st_size)
            before = known.get(path)
            self._read[path] = before if before is not None and before[0] == mark else (mark, self._server(path))
        return frozenset(found for _, found in self._read.values() if found is not None)

    def _server(self, path: Path) -> DiscoveredServer | None:
        try:
            with path.open("rb") as file:
                said = EndpointFile.model_validate_json(file.read(MAX_BYTES))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            key = ".".join(map(str, first["loc"]))
            log.warning("endpoint file ignored: %s: %s", path, f"{key}: {first['msg']}" if key else first["msg"])
            return None
        except OSError as error:
            log.warning("endpoint file ignored: %s", error)
            return None
        if said.model != self._model:
            return None
        started = said.started_at if said.started_at.tzinfo else said.started_at.replace(tzinfo=UTC)
        host = f"[{said.host}]" if ":" in said.host else said.host
        return DiscoveredServer(f"http://{host}:{said.port}/v1", started.timestamp())
