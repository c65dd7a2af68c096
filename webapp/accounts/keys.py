"""/v1/keys: the API keys of all projects, for administrators."""

from collections.abc import Sequence

from flask import Blueprint

from batchyard import signatures
from store import events, keys
from store.accounting import budgets
from store.accounting.budgets import Standing
from webapp.document import operation
from webapp.requests import administrator, current_context, listed, parse_body
from webapp.wire import accounts as wire

routes = Blueprint("keys", __name__)


@routes.post("/v1/keys")
@operation(wire.NewKeyObject, json=wire.CreateKey, refusals=(403, 409, 413))
def create() -> wire.NewKeyObject:
    """Make an API key. This answer is the only time it is seen."""
    administrator()
    key = make(parse_body(wire.CreateKey))
    cap = caps_of([key.id]).get(key.id)
    return wire.NewKeyObject(**vars(key), last_used_at=None, revoked_at=None, cap=cap.document if cap else None)


def make(body: wire.CreateKey) -> keys.NewKey:
    """Create a key, and record who did. Raises RequestError."""
    with current_context().database.write() as session:
        key = keys.create(
            session, body.project, admin=body.admin, label=body.label, expires_after=body.expires_after_seconds
        )
        shown = {"project": key.project, "label": key.label, "admin": key.admin}
        events.act(session, administrator(), "key.created", key.id, **shown)
        if any(limit is not None for limit in body.limits.values()):
            _check(body)
            budgets.cap(session, administrator(), key.id, body.limits)
    return key


def _check(body: wire.CapLimits) -> None:
    if money := body.limits.get("max_cost"):
        budgets.check_currency(money[1], current_context().models)


@routes.get("/signing-keys")
@operation(wire.SigningKeys, public=True)
def signing() -> wire.SigningKeys:
    """List the public keys that verify the signatures of manifests, the one in use first."""
    return wire.SigningKeys.model_validate({"data": signatures.shown(current_context().settings.signing_key)})


@routes.post("/v1/keys/<key_id>")
@operation(wire.KeyObject, json=wire.ChangeKey, refusals=(403, 404, 413))
def change(key_id: str) -> wire.KeyObject:
    """Set what a key may use in a month. Once it has, its requests are refused and its batches and jobs pause."""
    owner, body = administrator(), parse_body(wire.ChangeKey)
    _check(body)
    with current_context().database.write() as session:
        budgets.cap(session, owner, key_id, body.limits)
        key = keys.get(session, key_id)
    return _objects([key])[0]


def caps_of(key_ids: Sequence[str]) -> dict[str, Standing]:
    """Return how the caps of these keys stand, by key."""
    with current_context().database.read() as session:
        return {standing.budget.key_id: standing for standing in budgets.standings(session, key_ids)}


def _objects(records: Sequence[keys.Key]) -> list[wire.KeyObject]:
    caps = caps_of([key.id for key in records])
    return [wire.KeyObject(**vars(key), cap=caps[key.id].document if key.id in caps else None) for key in records]


@routes.get("/v1/keys")
@operation(wire.KeyPage, query=wire.ListKeys, refusals=(403,))
def list_() -> wire.KeyPage:
    """List API keys, newest first, without their secrets."""
    administrator()
    records, has_more = listed(keys.page, wire.ListKeys)
    return wire.KeyPage.of(_objects(records), has_more=has_more)


@routes.delete("/v1/keys/<key_id>")
@operation(wire.KeyObject, refusals=(403, 404))
def revoke(key_id: str) -> wire.KeyObject:
    """Revoke an API key, at once and for good."""
    return _objects([end(key_id)])[0]


def end(key_id: str) -> keys.Key:
    """Revoke a key, and record who did. Raises NotFoundError."""
    owner = administrator()
    with current_context().database.write() as session:
        key = keys.revoke(session, key_id)
        events.act(session, owner, "key.revoked", key_id, project=key.project, label=key.label)
    return key
