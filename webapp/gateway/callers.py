"""Callers of live requests: their keys, projects and budgets, cached, so that a request waits for no database."""

import asyncio
import hashlib
import logging
import time
from dataclasses import dataclass

from aiohttp import web
from sqlalchemy.orm import Session

from batchyard.endpoints.live_wire import TIERS, Tier
from batchyard.errors import AuthenticationError, PermissionDeniedError, UnavailableError
from store import keys, projects
from store.accounting.budgets import Standing, standing
from store.keys import Principal
from tasks.context import AppContext
from tasks.intake import budgets
from webapp.access import api_keys
from webapp.access.api_keys import WRONG_KEY, note_use

REFRESH_SECONDS = 2.0
"""How often cached keys, projects and budgets are read again: a revoked key opens nothing after that."""
FORGET_SECONDS = 3600.0
UNKNOWN_SECONDS = 2.0
MAX_UNKNOWN = 10_000
"""Wrong keys are remembered for a moment, so that their sender asks the database of nothing."""

log = logging.getLogger(__name__)


@dataclass
class Caller:
    """Who sends a live request. `refusal` says why the project may not; `cap` is how the key's cap stood last."""

    principal: Principal
    project: str
    tiers: tuple[Tier, ...] = TIERS
    refusal: PermissionDeniedError | None = None
    cap: Standing | None = None
    used_at: float = 0.0


class Callers:
    """The callers that were seen lately, by the SHA-256 of their keys; those with a session by the ids of theirs."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._callers: dict[bytes, Caller] = {}
        self._unknown: dict[bytes, float] = {}
        self._refreshing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._refreshing = asyncio.create_task(self._refresh())

    async def stop(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()

    async def caller(self, key: str) -> Caller:
        """Return a key's caller. Raises AuthenticationError; UnavailableError for an unused key without a database."""
        digest = hashlib.sha256(key.encode()).digest()
        caller, now = self._callers.get(digest), time.monotonic()
        if caller is None and self._unknown.get(digest, 0.0) < now:
            caller = await asyncio.to_thread(self._read, key)
            if caller is not None:
                self._callers[digest] = caller
            if caller is None and len(self._unknown) >= MAX_UNKNOWN:
                self._unknown = {known: until for known, until in self._unknown.items() if until > now}
            if caller is None and len(self._unknown) < MAX_UNKNOWN:
                self._unknown[digest] = now + UNKNOWN_SECONDS
        if caller is None:
            raise AuthenticationError(WRONG_KEY)
        caller.used_at = now
        return caller

    async def of(self, principal: Principal) -> Caller:
        """Return the caller whom the web app knows by a session. Raises UnavailableError."""
        place = principal.key_id.encode()
        caller = self._callers.get(place)
        if caller is None:
            caller = self._callers[place] = await asyncio.to_thread(self._read_project, principal)
        caller.used_at = time.monotonic()
        return caller

    def _read(self, key: str) -> Caller | None:
        with self._context.database.read() as session:
            principal = keys.authenticate(session, key)
            if principal is None:
                return None
        caller = self._read_project(principal)
        if principal.unnoted:
            note_use(self._context, principal.key_id)
        return caller

    def _read_project(self, principal: Principal) -> Caller:
        caller = Caller(principal, "")
        with self._context.database.read() as session:
            self._bring_up_to_date(session, caller)
            caller.cap = standing(session, principal.project_id, principal.key_id)
        return caller

    def _bring_up_to_date(self, session: Session, caller: Caller) -> None:
        context = self._context
        project = projects.get(session, caller.principal.project_id)
        caller.project = project.name
        caller.tiers = projects.live_tiers(project)
        try:
            budgets.check(context, session, project.id)
            caller.refusal = None
        except PermissionDeniedError as error:
            caller.refusal = error

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            since = time.monotonic() - FORGET_SECONDS
            self._callers = {digest: caller for digest, caller in self._callers.items() if caller.used_at >= since}
            if not self._callers:
                continue
            try:
                gone = await asyncio.to_thread(self._read_again, list(self._callers.items()))
            except UnavailableError as error:  # those that were known stay known
                log.warning("keys not read: %s", error)
            else:
                for digest in gone:
                    self._callers.pop(digest, None)

    def _read_again(self, callers: list[tuple[bytes, Caller]]) -> list[bytes]:
        """Bring callers up to date, and return those whose key opens nothing any more."""
        with self._context.database.read() as session:
            valid = keys.valid(session, {caller.principal.key_id for _, caller in callers})
            by_project: dict[str, Caller] = {}
            for _, caller in callers:
                if caller.principal.key_id in valid:
                    first = by_project.setdefault(caller.principal.project_id, caller)
                    caller.cap = standing(session, caller.principal.project_id, caller.principal.key_id)
                    if first is caller:
                        self._bring_up_to_date(session, caller)
                    caller.project, caller.tiers, caller.refusal = first.project, first.tiers, first.refusal
            return [digest for digest, caller in callers if caller.principal.key_id not in valid]


def key_of(request: web.Request) -> str:
    """Return the key that a request sends. Raises AuthenticationError."""
    return api_keys.key_of(request.headers.get("Authorization", ""), request.headers.get("x-api-key", ""))


def address_of(request: web.Request, proxies: int) -> str:
    """Return the client's address: of those that the proxies have appended to X-Forwarded-For, the first."""
    texts = request.headers.getall("X-Forwarded-For", [])
    addresses = [*(part.strip() for text in texts for part in text.split(",")), request.remote or ""]
    return addresses[-min(proxies + 1, len(addresses))]
