"""/v1/keys: the API keys of all projects, for administrators."""

from flask import Blueprint

from store import events, keys
from webapp.document import operation
from webapp.requests import administrator, current_context, listed, parse_body
from webapp.wire.accounts import CreateKey, KeyObject, KeyPage, ListKeys, NewKeyObject

routes = Blueprint("keys", __name__)


@routes.post("/v1/keys")
@operation(NewKeyObject, json=CreateKey, refusals=(403, 409, 413))
def create() -> NewKeyObject:
    """Make an API key. This answer is the only time it is seen."""
    administrator()
    key = make(parse_body(CreateKey))
    return NewKeyObject(**vars(key), last_used_at=None, revoked_at=None)


def make(body: CreateKey) -> keys.NewKey:
    """Create a key, and record who did. Raises RequestError."""
    with current_context().database.write() as session:
        key = keys.create(
            session, body.project, admin=body.admin, label=body.label, expires_after=body.expires_after_seconds
        )
        shown = {"project": key.project, "label": key.label, "admin": key.admin}
        events.act(session, administrator(), "key.created", key.id, **shown)
    return key


@routes.get("/v1/keys")
@operation(KeyPage, query=ListKeys, refusals=(403,))
def list_() -> KeyPage:
    """List API keys, newest first, without their secrets."""
    administrator()
    records, has_more = listed(keys.page, ListKeys)
    return KeyPage.of([KeyObject(**vars(key)) for key in records], has_more=has_more)


@routes.delete("/v1/keys/<key_id>")
@operation(KeyObject, refusals=(403, 404))
def revoke(key_id: str) -> KeyObject:
    """Revoke an API key, at once and for good."""
    return KeyObject(**vars(end(key_id)))


def end(key_id: str) -> keys.Key:
    """Revoke a key, and record who did. Raises NotFoundError."""
    owner = administrator()
    with current_context().database.write() as session:
        key = keys.revoke(session, key_id)
        events.act(session, owner, "key.revoked", key_id, project=key.project, label=key.label)
    return key
