"""Endpoint files: a server's job (such as one under SLURM) writes the server's address into a shared folder."""

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, Field, ValidationError

from batchyard import proxies
from batchyard.schema_words import invalid_values

MAX_BYTES = 65536

log = logging.getLogger(__name__)


class EndpointFile(BaseModel):
    """The content of a `*.json` file. Other keys are ignored."""

    host: str = Field(pattern=r"^([A-Za-z0-9._-]+|[0-9A-Fa-f:.]+)$")  # a name or an address
    port: int = Field(ge=1, le=65535)
    model: str  # the model's name at that server
    started_at: datetime  # Unix seconds, or ISO 8601 (UTC if it names no zone)


class DiscoveredServer(NamedTuple):
    """A server: base URL and Unix start time. After a restart it is another one."""

    url: str
    started_at: float


class Folder:
    """The endpoint files of one model in one folder."""

    def __init__(self, path: Path, model: str) -> None:
        self._path = path
        self._model = model
        self._entries: dict[Path, tuple[tuple[int, int], DiscoveredServer | None]] = {}
        self._listed = True

    def servers(self) -> frozenset[DiscoveredServer]:
        """Return the servers that have a file now; a broken one is logged once.

        A folder that cannot be listed keeps its last servers; a missing folder has none.
        """
        try:
            paths = [path for path in self._path.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:
            paths = []
        except OSError as error:
            if self._listed:
                log.warning("endpoint folder cannot be listed: %s", error)
            self._listed = False
            paths = list(self._entries)
        else:
            self._listed = True
        before, self._entries = self._entries, {}
        for path in paths:
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # deleted since it was listed
            except OSError:
                version = before[path][0] if path in before else (0, 0)
            else:
                version = (status.st_ctime_ns, status.st_size)
            entry = before.get(path)
            unchanged = entry is not None and entry[0] == version
            self._entries[path] = entry if entry and unchanged else (version, self._server(path))
        return frozenset(server for _, server in self._entries.values() if server is not None)

    def _server(self, path: Path) -> DiscoveredServer | None:
        try:
            with path.open("rb") as file:
                content = EndpointFile.model_validate_json(file.read(MAX_BYTES))
        except ValidationError as error:
            log.warning("endpoint file ignored: %s: %s", path, invalid_values(error, show=False)[0])
            return None
        except OSError as error:
            log.warning("endpoint file ignored: %s", error)
            return None
        if content.model != self._model:
            return None
        started_at = content.started_at
        if started_at.tzinfo is None:
            started_at = started_at.replace(tzinfo=UTC)
        return DiscoveredServer(f"http://{proxies.address(content.host, content.port)}/v1", started_at.timestamp())
