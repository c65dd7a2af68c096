"""/begin: what one can do here, each a click away from a form that is filled in."""

from __future__ import annotations

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue

from batchyard.models import served_by_name
from webapp.pages.starting import examples
from webapp.pages.trying import endpoint_of
from webapp.port import port
from webapp.requests import current_context

routes = Blueprint("start", __name__, url_prefix="/begin")


@routes.get("")
def show() -> ResponseReturnValue:
    recipes = port().recipes()
    return flask.render_template(
        "start.html",
        cards=[card for card in examples.cards().values() if card.recipe in (None, *(one.name for one in recipes))],
        tryable=[name for name, spec in served_by_name(current_context().models).items() if endpoint_of(spec)],
        recipes=recipes,
    )
