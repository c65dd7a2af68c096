"""API keys of requests, as the gateway and the web app read them."""

import logging

from batchyard.errors import AuthenticationError, UnavailableError
from store import keys
from tasks.context import AppContext

WRONG_KEY = "Incorrect API key provided. Make one with 'batchyard key create'."

log = logging.getLogger(__name__)


def key_of(authorization: str, api_key: str) -> str:
    """Return the key in a request's headers Authorization or x-api-key. Raises AuthenticationError."""
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer" or not key:
        key = api_key  # as Anthropic's clients send it
    if not key:
        raise AuthenticationError(
            "You didn't provide an API key. Send it as 'Authorization: Bearer <key>' or 'x-api-key: <key>'."
        )
    return key.strip()


def note_use(context: AppContext, key_id: str) -> None:
    """Note that a key is used now. A database that is away is logged: nothing depends on this."""
    try:
        with context.database.write() as session:
            keys.note_use(session, key_id)
    except UnavailableError as error:
        log.warning("use of a key not noted: %s", error)
