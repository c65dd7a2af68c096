"""Outputs: parts of results at a URL, as files of a folder or rows of a table, each there whole or not at all."""

from __future__ import annotations

import functools
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from fsspec.implementations.local import LocalFileSystem

from store.artifacts import file_system, translated
from store.intake import tables
from store.intake.tables import OutputTable
from store.records import Batch, Job


def resolved(url: str, work: Batch | Job) -> str:
    """Return a URL with the id, the name and the date of creation of its batch or job in place of `{id}` and so on."""
    name = re.sub(r"[^\w.-]+", "-", work.name or work.id).strip(".-") or work.id
    date = time.strftime("%Y-%m-%d", time.gmtime(work.created_at))
    return url.replace("{id}", work.id).replace("{name}", name).replace("{date}", date)


def output(url: str, work: Batch | Job, databases: Mapping[str, str], columns: Mapping[str, str]) -> Destination:
    """Return the folder or table at a URL with the placeholders of `resolved`.

    `databases` and `columns` are those of OutputTable.

    Raises ConfigurationError, PermissionDeniedError.
    """
    url = resolved(url, work)
    return OutputTable(url, work.id, databases, columns) if tables.is_table(url) else OutputFolder(url)


class OutputFolder:
    """A folder at a URL. Raises ConfigurationError."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._fs, root = file_system(self.url)
        self._root = root.rstrip("/")
        self._translated = functools.partial(translated, f"the folder {self.url}")

    def put(self, source: Path, name: str) -> None:
        """Copy a file to the folder, in place of one of that name, whole or not at all. Raises UnavailableError."""
        path = f"{self._root}/{name}"
        with self._translated("written"):
            if not isinstance(self._fs, LocalFileSystem):
                self._fs.put_file(str(source), path)  # object stores show an object once it is whole
                return
            self._fs.makedirs(self._root, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._root, prefix=".batchyard-", delete=False) as part:
                try:
                    shutil.copyfile(source, part.name)
                    Path(part.name).chmod(0o644)
                    Path(part.name).replace(path)
                except OSError:
                    Path(part.name).unlink(missing_ok=True)
                    raise


Destination: TypeAlias = OutputFolder | OutputTable
"""Where the parts of results go."""
