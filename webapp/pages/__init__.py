"""The web pages: rendered on the server, usable without scripts, for people who have signed in with an API key.

Each module of MODULES has a blueprint `routes`; pages of the navigation have an entry in NAVIGATION.
Every route needs a session, and every POST its form's CSRF token. `sessions.admit` checks both before the route runs.
"""

import functools
import hashlib
from pathlib import Path
from typing import Any

import flask
from flask import Blueprint, Flask, Response, current_app

from batchyard import __version__
from batchyard.local_state import local_state
from store.accounting import budgets
from store.accounting.budgets import State
from webapp.errors import is_page
from webapp.gateway import tickets
from webapp.pages import batches, compare, files, formats, models, overview, rows, selection, sessions, trying
from webapp.pages.accounts import audit, keys, usage
from webapp.pages.automation import schedules, webhooks
from webapp.pages.starting import batch, examples
from webapp.port import port
from webapp.requests import current_context

MODULES = (
    *(sessions, overview, selection, compare, batches, rows, files, models, trying, schedules, webhooks),
    *(examples, batch),
    *(usage, keys, audit),
)
NAVIGATION = {
    "Work": {
        "Home": "pages.overview.show",
        "Start": "pages.start.show",
        "New batch": "pages.new.show",
        "Schedules": "pages.schedules.show",
        "Files": "pages.files.show",
    },
    "Service": {"Models": "pages.models.show", "Usage": "pages.usage.show", "Webhooks": "pages.webhooks.show"},
}
ADMINISTRATION = {"Administration": {"Keys": "pages.keys.show", "Audit": "pages.audit.show"}}

# The browser may load only what this server sends, and runs no inline script or style.
POLICY = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'"),
        "media-src data:",
        *("form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'"),
    )
)
STATIC_SECONDS = 365 * 86400


def _add_variables() -> dict[str, Any]:
    visitor = sessions.visitor()

    def budget_state() -> State:
        """Return what was announced of the visitor's budget in this month."""
        if visitor is None:
            return "ok"
        with current_context().database.read() as session:
            return budgets.noticed(session, visitor.caller.project_id)

    return {
        "navigation": NAVIGATION | (ADMINISTRATION if visitor and visitor.caller.admin else {}),
        "visitor": visitor,
        "version": __version__,
        "csrf_token": sessions.csrf_token,
        "switch_url": sessions.switch_url,
        "flower": lambda: local_state(current_context().settings.data).get("flower"),
        "budget_state": budget_state,
    }


def _add_version(endpoint: str, values: dict[str, Any]) -> None:
    if endpoint == "static":
        values["v"] = _version(str(current_app.static_folder), values["filename"])


@functools.cache
def _version(folder: str, name: str) -> str:
    return hashlib.sha256(Path(folder, name).read_bytes()).hexdigest()[:12]


def _protect(response: Response) -> Response:
    """Add the headers that protect a response in a browser: of a page, a static file, or else as the gateway's."""
    if is_page() or flask.request.endpoint == "document.docs":
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["Referrer-Policy"] = "same-origin"
    elif flask.request.endpoint == "static" and "v" in flask.request.args:
        response.headers["Cache-Control"] = f"public, max-age={STATIC_SECONDS}, immutable"
    for name, value in tickets.PROTECTION.items():
        response.headers.setdefault(name, value)
    return response


def register(app: Flask) -> None:
    formats.register(app)
    routes = Blueprint("pages", __name__)
    routes.before_request(sessions.admit)
    routes.before_app_request(sessions.recognise)
    routes.app_context_processor(_add_variables)
    routes.app_url_defaults(_add_version)
    routes.after_app_request(_protect)
    for page in (*(module.routes for module in MODULES), *port().pages):
        routes.register_blueprint(page)
    app.register_blueprint(routes)
