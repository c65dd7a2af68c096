"""Commands that are run again find their first batch or job by a mark in its metadata."""

import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from batchyard.client.api import ApiClient
from batchyard.statuses import TERMINAL

KEY = "batchyard.run"
AGAIN = "--again computes all of it anew"
_NOT_RESUMED = ("failed", "expired", "cancelling", "cancelled")


def remedy(again: bool) -> str:
    """How to go on with a command that Ctrl-C has ended: with `--again` it would begin anew."""
    command = "the same command without --again" if again else "the same command again"
    return f"{command} goes on with what has no answer yet"


def goes_on(server: ApiClient, documents: Iterable[dict[str, Any]]) -> str:
    """Return what becomes of batches and jobs that nobody waits for any longer, and how to cancel them."""
    unfinished = [document["id"] for document in documents if document["status"] not in TERMINAL]
    if not server.stays:
        return "\n".join(f"{name} stops with the server that this command has started" for name in unfinished)
    cancel = {name: f"batchyard {'job ' if name.startswith('job_') else ''}cancel {name}" for name in unfinished}
    return "\n".join(f"{name} goes on at {server.url}; `{cancel[name]}` ends it" for name in unfinished)


def mark(server: ApiClient, *parts: Any) -> dict[str, str]:
    """Return equal metadata for the same command: a hash of `parts` and the served models."""
    return fingerprint(*parts, server.models())


def fingerprint(*parts: Any) -> dict[str, str]:
    """Return metadata that is equal for equal `parts`, which are JSON."""
    return {KEY: hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()}


class Earlier:
    """Finds batches or jobs of earlier commands, the newest first; fetches no more than it must.

    A retry does not count: it has the metadata of its source, but only a part of the rows.
    """

    def __init__(self, objects: Iterable[dict[str, Any]], not_resumed: Container[str] = _NOT_RESUMED) -> None:
        """Take batches or jobs, the newest first; those with a status of `not_resumed` do not count."""
        self._objects = iter(objects)
        self._not_resumed = not_resumed
        self._by_mark = defaultdict[str, list[dict[str, Any]]](list)

    def find(
        self,
        mark: dict[str, str],
        remedy: str | None = AGAIN,
        *,
        without: Container[str] = (),
    ) -> dict[str, Any] | None:
        """Return the newest one with that mark; None if there is none.

        Standard error says which it is, unless `remedy`, which tells how to get another, is None.

        `without`: ids of those that do not count.
        """
        key = mark[KEY]
        documents = itertools.chain(self._by_mark[key], self._fetched(key))
        document = next((one for one in documents if one["id"] not in without), None)
        if document is not None and remedy is not None:
            click.echo(f"taking up {name_of(document)}; {remedy}", err=True)
        return document

    def _fetched(self, key: str) -> Iterator[dict[str, Any]]:
        """Fetch more, and yield those with that mark."""
        for document in self._objects:
            if document["status"] in self._not_resumed or document["batchyard"]["retry_of"] is not None:
                continue
            mark = (document["metadata"] or {}).get(KEY, "")
            self._by_mark[mark].append(document)
            if mark == key:
                yield document


def name_of(document: dict[str, Any]) -> str:
    """Return what to call a batch or a job: its id and its status."""
    return f"{document['object']} {document['id']} ({document['status']})"


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
