"""HTTP in, HTTP out: routes, authentication and errors. A route parses, asks the store once, and answers.

Knows the store and the names of tasks; never Ray or an engine.
"""

from __future__ import annotations

import gc
import sys

from celery import Celery
from flask import Flask

from batchyard import logs, settings
from tasks.context import REDIS_SECONDS, AppContext, build
from webapp import (
    batches,
    document,
    errors,
    events,
    files,
    health,
    keys,
    limits,
    metrics,
    models,
    pages,
    projects,
    requests,
    schedules,
    start,
    webhooks,
)

SWITCH_SECONDS = 0.0005
MODULES = (files, batches, events, webhooks, schedules, models, keys, projects, start, metrics, health, document)


def create_app(context: AppContext | None = None) -> Flask:
    """The WSGI application, over `context` or one made from the environment. Raises ConfigurationError."""
    if context is None:
        configuration = settings.load()
        logs.configure(configuration.log_level)
        context = build(configuration)
    # A request gives the interpreter's lock away at each query and each answer of Redis, and waits for it this long
    # when other threads are busy: at Python's 5 ms, a few requests at once take a hundred.
    sys.setswitchinterval(SWITCH_SECONDS)
    celery = Celery("batchyard")
    celery.config_from_object("celeryconfig")
    # A request does not wait for a broker that is away or hangs: housekeeping sends the message again.
    impatient = {"max_retries": 0, "socket_timeout": REDIS_SECONDS}
    celery.conf.broker_transport_options = {**celery.conf.broker_transport_options, **impatient}
    celery.set_default()

    app = Flask(__name__)
    app.request_class = requests.Request
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.extensions["context"] = context
    app.config["MAX_FORM_PARTS"] = 50
    requests.register(app)
    limits.register(app, context)
    metrics.register(app, context)
    errors.register(app)
    for module in MODULES:
        app.register_blueprint(module.routes)
    pages.register(app)
    # What is there now stays: looking through it at each full collection would stop all requests for 0.1 s.
    gc.collect()
    gc.freeze()
    return app
