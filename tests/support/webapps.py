"""The web app alone, with a context in a folder."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from flask.testing import FlaskClient

from batchyard import settings
from store import keys
from tasks.context import AppContext, build
from webapp import create_app

_contexts: list[AppContext] = []


def context_in(folder: Path, **changes: Any) -> AppContext:
    """Return a context with one simulated model and these changes of settings."""
    (folder / "models.toml").write_text('[models.echo]\nengine = "echo"\n')
    context = build(settings.load(data=folder / "data", models=folder / "models.toml", allow_simulated=True, **changes))
    context.database.upgrade()
    _contexts.append(context)
    return context


def close_contexts() -> None:
    """Close the databases of all contexts: a server has connections for a hundred tests at most."""
    while _contexts:
        _contexts.pop().database.close()


def client_of(context: AppContext, *, admin: bool = False, project: str = "default") -> FlaskClient:
    """Return a client of a new app with a new key."""
    with context.database.write() as session:
        key = keys.create(session, project, admin=admin).key
    client = create_app(context).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {key}"
    return client


def upload(client: FlaskClient, content: bytes, name: str = "in.jsonl", **form: str) -> Any:
    data = {"purpose": "batch", "file": (io.BytesIO(content), name), **form}
    return client.post("/v1/files", data=data, content_type="multipart/form-data")
