"""The web app alone, over a context in a folder, as tests use it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from flask.testing import FlaskClient

from batchyard import settings
from store import keys
from tasks.context import AppContext, build
from webapp import create_app


def context_in(folder: Path, **given: Any) -> AppContext:
    """A context with these settings and one simulated model."""
    (folder / "models.toml").write_text('[models.echo]\nengine = "echo"\n')
    context = build(settings.load(data=folder / "data", models=folder / "models.toml", allow_simulated=True, **given))
    context.database.upgrade()
    return context


def client_of(context: AppContext) -> FlaskClient:
    """A client of an app of its own, with a key of its own."""
    with context.database.write() as session:
        key = keys.create(session, "default").key
    client = create_app(context).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {key}"
    return client


def upload(client: FlaskClient, content: bytes, **form: str) -> Any:
    data = {"purpose": "batch", "file": (io.BytesIO(content), "in.jsonl"), **form}
    return client.post("/v1/files", data=data, content_type="multipart/form-data")
