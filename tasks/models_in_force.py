"""The models in force: models.toml, and over it the changes in the database."""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchyard import models
from batchyard.errors import ConfigurationError, UnavailableError
from batchyard.models import ModelSpec
from batchyard.settings import Settings
from inference import catalog
from store import model_changes
from store.database import Database
from store.model_changes import Changes

CHECK_SECONDS = 0.9
"""How long a process believes that nothing has changed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InForce:
    """What a process serves: models by name, and removed ones whose batches still run."""

    models: dict[str, ModelSpec]
    draining: Mapping[str, ModelSpec]


class ModelsInForce:
    """Reads the models that are in force now. Raises ConfigurationError for a models.toml that cannot be used."""

    def __init__(self, settings: Settings, database: Database, document: Mapping[str, Any]) -> None:
        self._settings, self._database, self.document = settings, database, document
        self._reloaded_at = 0.0
        self._version, self._checked_at = 0.0, 0.0
        self._lock = threading.Lock()
        self.in_force = self.at_start = InForce(self.check(Changes({}, {})), {})

    def check(self, changes: Changes, document: Mapping[str, Any] | None = None) -> dict[str, ModelSpec]:
        """Return the models with these changes. Raises ConfigurationError."""
        path = self._settings.models
        entries = models.entries_of(path, self.document if document is None else document, changes.over_file)
        return catalog.checked(path, entries, allow_simulated=self._settings.allow_simulated)

    def now(self, *, at_once: bool = False) -> InForce:
        """Return what is in force. `at_once`: look at the database, however lately that was done."""
        with self._lock:
            if at_once or time.monotonic() - self._checked_at >= CHECK_SECONDS:
                self._checked_at = time.monotonic()
                self._bring_up_to_date()
            return self.in_force

    def _bring_up_to_date(self) -> None:
        try:
            with self._database.read() as session:
                version = model_changes.version(session)
                if version == self._version:
                    return
                changes = model_changes.read(session)
        except UnavailableError as error:
            log.warning("changes of models not read; the last ones stay in force: %s", error)
            return
        self._version = version  # also of one that cannot be used: it is reported once
        try:
            if self._reloaded_at != changes.reloaded_at:
                self.document = models.parsed(self._settings.models)
            self._reloaded_at = changes.reloaded_at
            in_force = InForce(self._usable(changes), self._draining(changes))
        except ConfigurationError as error:
            log.error("models not changed: %s", error.message)
            return
        self.in_force = in_force
        log.info("models in force: %s", ", ".join(in_force.models))

    def _usable(self, changes: Changes) -> dict[str, ModelSpec]:
        """Return the models, without changed ones that cannot be used here. Raises ConfigurationError."""
        path, allow_simulated = self._settings.models, self._settings.allow_simulated
        usable: dict[str, ModelSpec] = {}
        for name, entry in models.entries_of(path, self.document, changes.over_file).items():
            try:
                usable |= catalog.checked(path, {name: entry}, allow_simulated=allow_simulated)
            except ConfigurationError as error:
                if name not in changes.entries:
                    raise
                log.error("model not served: %s", error.message, extra={"model": name})
        return usable

    def _draining(self, changes: Changes) -> dict[str, ModelSpec]:
        path, draining = self._settings.models, dict[str, ModelSpec]()
        for name, entry in changes.removed.items():
            try:
                entries = models.entries_of(path, self.document, {name: entry})
                draining |= catalog.checked(path, {name: entries[name]}, allow_simulated=self._settings.allow_simulated)
            except ConfigurationError as error:
                log.error("removed model cannot end its batches: %s", error.message, extra={"model": name})
        return draining
