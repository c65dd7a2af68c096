"""The HTTP API and the pages. A route parses the request, makes one call, and answers.

Imports the store and tasks, never Ray or an engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask

    from tasks.context import AppContext


def create_app(context: AppContext | None = None) -> Flask:
    """Return the WSGI application. The environment's settings build a `context` of None. Raises ConfigurationError."""
    from webapp import application  # the gateway, which is in this package too, needs nothing of it

    return application.create(context)
