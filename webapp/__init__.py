"""HTTP in, HTTP out: routes, authentication and errors. A route parses, asks the store once, and answers.

Knows the store and the names of tasks; never Ray or an engine.
"""

from __future__ import annotations

from celery import Celery
from flask import Flask

from batchyard import logs, settings
from tasks.house import House, build
from webapp import batches, errors, files, health, models, requests


def create_app(house: House | None = None) -> Flask:
    """The WSGI application, over `house` or one made from the environment. Raises ConfigurationError."""
    if house is None:
        configuration = settings.load()
        logs.configure(configuration.log_level)
        house = build(configuration)
    celery = Celery("batchyard")
    celery.config_from_object("celeryconfig")
    celery.set_default()

    app = Flask(__name__)
    app.request_class = requests.Request
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.extensions["house"] = house
    app.config["MAX_FORM_PARTS"] = 20
    requests.register(app)
    errors.register(app)
    for blueprint in (files.routes, batches.routes, models.routes, health.routes):
        app.register_blueprint(blueprint)
    return app
