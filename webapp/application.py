"""The Flask application: its routes, pages, limits and errors."""

import gc
import sys

from celery import Celery
from flask import Flask, Response, request
from werkzeug.middleware.proxy_fix import ProxyFix

from batchyard import logs, plugins, settings, signatures
from batchyard.telemetry import spans
from tasks import idle
from tasks.context import REDIS_SECONDS, AppContext, build
from tasks.port import port as programs
from tasks.steps import registry as step_registry
from webapp import (
    batches,
    document,
    errors,
    events,
    files,
    health,
    limits,
    metrics,
    models,
    pages,
    prometheus,
    requests,
    schedules,
    webhooks,
)
from webapp.access import audit
from webapp.accounts import budgets, keys, projects, usage
from webapp.anthropic import message_batches
from webapp.encodings import InflatedBodies
from webapp.intake import imports, open_batches, start, uploads
from webapp.port import port

SWITCH_SECONDS = 0.0005
MODULES = (
    *(files, uploads, imports, batches, message_batches, open_batches),
    *(events, webhooks, schedules, models, keys, projects, budgets, usage, start, metrics, health, document),
)


def create(context: AppContext | None) -> Flask:
    """Return the application. The environment's settings build a `context` of None. Raises ConfigurationError."""
    if context is None:
        configuration = settings.load()
        logs.configure(configuration.log_level)
        context = build(configuration)
    programs().prepare(context.settings)
    spans.prepare()
    signatures.read(context.settings.signing_key)  # one that cannot be used is refused here
    step_registry.STEPS.load()  # a package's step that cannot be used is refused here, not at a request
    # A request releases the GIL at each query and each Redis call. It then waits up to one switch interval to get it
    # back from a busy thread: at Python's default of 5 ms, a few concurrent requests take 100 ms each.
    sys.setswitchinterval(SWITCH_SECONDS)
    celery = Celery("batchyard")
    celery.config_from_object("celeryconfig")
    # A request must not wait for a broker that is down or hangs: housekeeping sends the message again.
    transport_options = {"max_retries": 0, "socket_timeout": REDIS_SECONDS}
    celery.conf.broker_transport_options = {**celery.conf.broker_transport_options, **transport_options}
    celery.set_default()

    app = Flask("webapp")
    # What a client sends in this header is never believed: each trusted proxy appends to it.
    proxies = context.settings.proxies
    proxied = ProxyFix(app.wsgi_app, x_for=proxies, x_proto=proxies)
    app.wsgi_app = InflatedBodies(proxied)  # type: ignore[method-assign]
    app.request_class = requests.StreamedRequest
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.extensions["context"] = context
    app.config["MAX_FORM_PARTS"] = errors.MAX_FORM_PARTS
    requests.register(app)
    client = idle.impatient(context.settings.redis_url)

    @app.after_request
    def _wake(response: Response) -> Response:
        """Have the next tick of an idle deployment come soon after each request that has changed something."""
        if request.method not in ("GET", "HEAD", "OPTIONS") and response.status_code < 400:
            idle.clear(client)
        return response

    limits.register(app, context)
    prometheus.register(app, context)
    audit.register(app, context.settings.audit)
    health.register(app)
    errors.register(app)
    for routes in (*(module.routes for module in MODULES), *port().routes):
        app.register_blueprint(routes)
    pages.register(app)
    if context.settings.oidc_issuer:
        plugins.require("oidc", "BATCHYARD_OIDC_ISSUER")
        from webapp.access import oidc  # needs the extra

        app.extensions["oidc"] = oidc.Provider(app, context.settings)
    # The objects that exist now live as long as the process. Scanning them would stop all requests for 0.1 s at each
    # full collection.
    gc.collect()
    gc.freeze()
    return app
