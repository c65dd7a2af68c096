"""The audit of the web app's requests (BATCHYARD_AUDIT): one line for each that changes something, reads prompts or
answers, signs somebody in, or is refused.

A line's action is the name of its route. A new route that only reads is audited once it is named in READS.
"""

import flask
from flask import Flask, Response, g
from prometheus_client import Counter

from store.keys import Principal
from webapp.access.audit_log import REFUSALS, AuditLog

READS = frozenset(
    {
        "batches.plan",
        "batches.results",
        "files.content",
        "jobs.item",
        "jobs.item_events",
        "jobs.items",
        "jobs.plan",
        "jobs.results",
        "message_batches.results",
        "pages.batches.download",
        "pages.batches.download_input",
        "pages.batches.show",
        "pages.compare.show",
        "pages.files.content",
        "pages.items.show",
        "pages.jobs.download",
        "pages.jobs.download_input",
        "pages.jobs.items",
        "pages.jobs.show",
        "pages.rows.download",
        "pages.rows.one",
        "pages.rows.raw",
        "pages.rows.show",
        "pages.schedules.edit",
        "pages.schedules.show_one",
        "schedules.template",
    }
)
"""The routes that only read, and show prompts or answers."""
_SAFE = ("GET", "HEAD", "OPTIONS")
_SUBJECTS = ("id", "a", "b")
"""The parameters of pages by which several things are chosen."""
_UNCHANGED = 204
_MAX_CREATED_BYTES = 64 * 1024


def note(action: str, by: Principal | None = None) -> None:
    """Have an action audited that is not this request's route, such as signing in. `by`: who is signed in by it."""
    g.setdefault("audited", []).append((action, by))


def register(app: Flask, destination: str) -> None:
    """Audit requests to a destination, unless that is empty. Raises ConfigurationError if it cannot be written."""
    if not destination:
        return
    lost = Counter("batchyard_audit_lost_lines", "Lines of the audit that could not be written.", registry=None)
    app.extensions["metrics"].register(lost)
    audit_log = AuditLog(destination, lost.inc)

    @app.after_request
    def _audit(response: Response) -> Response:
        request = flask.request
        noted: list[tuple[str, Principal | None]] = g.get("audited", [])
        lines: list[tuple[str, str | None, Principal | None]] = [(action, None, by) for action, by in noted]
        reads = request.method in _SAFE and response.status_code not in REFUSALS
        shows = request.endpoint in READS and response.status_code != _UNCHANGED
        is_audited = request.endpoint is not None and (shows or not reads)
        if is_audited and not (noted and request.blueprint == "pages.sessions"):
            lines.append((str(request.endpoint), _subject(response), g.get("caller")))
        for line in lines:
            audit_log.write(*line, request.remote_addr, response.status_code, g.request_id)
        return response


def _subject(response: Response) -> str | None:
    """Return the ids of what a request is about: of its address, of its parameters, or of what it has created."""
    request = flask.request
    if request.view_args:
        return "/".join(map(str, request.view_args.values()))
    # An upload must not be read here: its route may not have parsed the form yet.
    parameters = request.form if "form" in vars(request) else request.args
    chosen = [value for name in _SUBJECTS for value in parameters.getlist(name)]
    if chosen:
        return ",".join(chosen)
    if response.is_json and not response.is_streamed and (response.content_length or 0) <= _MAX_CREATED_BYTES:
        body = response.get_json(silent=True)
        created = body.get("id") if isinstance(body, dict) else None
        return created if isinstance(created, str) else None
    if response.status_code == 303 and response.location:
        return response.location.partition("?")[0]
    return None
