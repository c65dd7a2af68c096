"""How a command that is run again finds the batch or the job that it made the first time: by a mark in the metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import click

from batchyard.cli.client import Client

KEY = "batchyard.run"
_NOT_RESUMED = ("failed", "expired", "cancelling", "cancelled")


def mark(server: Client, *parts: Any) -> dict[str, str]:
    """Return metadata that is equal for the same command: a hash of `parts` and of the models as they are served."""
    fingerprint = hashlib.sha256(json.dumps([*parts, server.models()], sort_keys=True).encode()).hexdigest()
    return {KEY: fingerprint}


def earlier(objects: Iterable[dict[str, Any]], mark: dict[str, str]) -> dict[str, Any] | None:
    """Return the newest batch or job with that mark that did not fail, expire or get cancelled; None if there is none.

    A retry has the metadata of what it retries, and only a part of its rows, so it is none. Says on standard error
    which it is.
    """
    for document in objects:
        if document["batchyard"]["retry_of"] is not None or document["status"] in _NOT_RESUMED:
            continue
        if (document["metadata"] or {}).get(KEY) == mark[KEY]:
            words = f"{document['object']} {document['id']} ({document['status']})"
            click.echo(f"taking up {words}; --again makes a new one", err=True)
            return document
    return None
