"""What results are read from."""

from __future__ import annotations

from typing import Protocol

from batchyard.settings import Settings
from store.artifacts import Artifacts
from store.database import Database


class Storage(Protocol):
    """The records and the artifacts of a deployment, and its limits. An application context is one."""

    @property
    def settings(self) -> Settings: ...

    @property
    def database(self) -> Database: ...

    @property
    def artifacts(self) -> Artifacts: ...
