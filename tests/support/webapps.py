"""The web app alone, with a context in a folder."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import flask
import pytest
import redis
from flask.testing import FlaskClient

from batchyard import settings
from jobs.intake import author_calls
from store import keys
from store.records import Project
from tasks.context import AppContext, build
from tests.support.sqlite import migrated
from webapp import create_app

_contexts: list[AppContext] = []
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""Runs a test on SQLite only: what it says is the same on any database, and others of its file run on both."""


def context_in(folder: Path, **changes: Any) -> AppContext:
    """Return a context with one simulated model and these changes of settings. A broker among them may be late.

    Its database is new and in the folder, unless `database_url` names one with the newest schema.
    """
    (folder / "models.toml").write_text('[models.echo]\nengine = "echo"\n')
    in_force = settings.load(data=folder / "data", models=folder / "models.toml", allow_simulated=True, **changes)
    if "database_url" not in changes and not (folder / "data/batchyard.db").exists():
        in_force.data.mkdir(exist_ok=True)
        (in_force.data / "batchyard.db").write_bytes(migrated())
    context = build(in_force)
    if "redis_url" in changes:
        broker = redis.Redis.from_url(changes["redis_url"], decode_responses=True, socket_timeout=60)
        context = replace(context, redis=broker)
    _contexts.append(context)
    return context


def close_contexts(lasting: Path | None = None) -> None:
    """Close the databases of all contexts, and end processes: a server has connections for a hundred tests at most.

    The processes of folder `lasting` of recipes stay: they take seconds to start.
    """
    for recipes in author_calls.pools.keys() - {str(lasting)}:
        author_calls.pools.pop(recipes).close()
    while _contexts:
        _contexts.pop().database.close()


def client_of(context: AppContext, *, admin: bool = False, project: str = "default") -> FlaskClient:
    """Return a client of a new app with a new key."""
    with context.database.write() as session:
        key = keys.create(session, project, admin=admin).key
    client = create_app(context).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {key}"
    return client


def project_of(context: AppContext, name: str = "default") -> str:
    """Return the id of a project by its name."""
    with context.database.read() as session:
        return session.query(Project).filter_by(name=name).one().id


def upload(client: FlaskClient, content: bytes, name: str = "in.jsonl", **form: str) -> Any:
    data = {"purpose": "batch", "file": (io.BytesIO(content), name), **form}
    return client.post("/v1/files", data=data, content_type="multipart/form-data")


@contextmanager
def requested(client: FlaskClient, *arguments: Any, **options: Any) -> Iterator[None]:
    """Handle a request whose caller is known, as its body is read after that. The arguments are Flask's."""
    with client.application.test_request_context(*arguments, **options):
        flask.g.caller = None
        yield
