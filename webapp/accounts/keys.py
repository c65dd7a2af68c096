"""/v1/keys: the API keys of all projects, for administrators."""

from collections.abc import Sequence

from flask import Blueprint

from batchyard import signatures
from store import events, keys
from store.accounting import budgets
from store.accounting.budgets import Standing
from webapp.document import operation
from webapp.requests import administrator, current_context, listed, parse_body
from webapp.wire.accounts import (
    CapLimits,
    ChangeKey,
    CreateKey,
    KeyObject,
    KeyPage,
    ListKeys,
    NewKeyObject,
    SigningKeys,
)

routes = Blueprint("keys", __name__)


@routes.post("/v1/keys")
@operation(NewKeyObject, json=CreateKey, refusals=(403, 409, 413))
def create() -> NewKeyObject:
    """Make an API key. This answer is the only time it is seen."""
    administrator()
    key = make(parse_body(CreateKey))
    cap = caps_of([key.id]).get(key.id)
    return NewKeyObject(**vars(key), last_used_at=None, revoked_at=None, cap=cap.document if cap else None)


def make(body: CreateKey) -> keys.NewKey:
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


def _check(body: CapLimits) -> None:
    if money := body.limits.get("max_cost"):
        budgets.check_currency(money[1], current_context().models)


@routes.get("/signing-keys")
@operation(SigningKeys, public=True)
def signing() -> SigningKeys:
    """List the public keys that verify the signatures of manifests, the one in use first."""
    return SigningKeys.model_validate({"data": signatures.shown(current_context().settings.signing_key)})


@routes.post("/v1/keys/<key_id>")
@operation(KeyObject, json=ChangeKey, refusals=(403, 404, 413))
def change(key_id: str) -> KeyObject:
    """Set what a key may use in a month. Once it has, its requests are refused and its batches and jobs pause."""
    owner, body = administrator(), parse_body(ChangeKey)
    _check(body)
    with current_context().database.write() as session:
        budgets.cap(session, owner, key_id, body.limits)
        key = keys.get(session, key_id)
    return _objects([key])[0]


def caps_of(key_ids: Sequence[str]) -> dict[str, Standing]:
    """Return how the caps of these keys stand, by key."""
    with current_context().database.read() as session:
        return {standing.budget.key_id: standing for standing in budgets.standings(session, key_ids)}


def _objects(records: Sequence[keys.Key]) -> list[KeyObject]:
    caps = caps_of([key.id for key in records])
    return [KeyObject(**vars(key), cap=caps[key.id].document if key.id in caps else None) for key in records]


@routes.get("/v1/keys")
@operation(KeyPage, query=ListKeys, refusals=(403,))
def list_() -> KeyPage:
    """List API keys, newest first, without their secrets."""
    administrator()
    records, has_more = listed(keys.page, ListKeys)
    return KeyPage.of(_objects(records), has_more=has_more)


@routes.delete("/v1/keys/<key_id>")
@operation(KeyObject, refusals=(403, 404))
def revoke(key_id: str) -> KeyObject:
    """Revoke an API key, at once and for good."""
    return _objects([end(key_id)])[0]


def end(key_id: str) -> keys.Key:
    """Revoke a key, and record who did. Raises NotFoundError."""
    owner = administrator()
    with current_context().database.write() as session:
        key = keys.revoke(session, key_id)
        events.act(session, owner, "key.revoked", key_id, project=key.project, label=key.label)
    return key
