"""Signing in by OpenID Connect: the authorization code flow with PKCE (S256), state and nonce, by Authlib.

What the browser brings back is bound to it by a signed cookie of ten minutes. Only the configured provider is asked:
its endpoints come from its own discovery document, and redirects are not followed.
"""

import hashlib
import hmac
import logging
from datetime import timedelta
from typing import Any

import flask
import requests
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.flask_client import FlaskOAuth2App, OAuth
from authlib.integrations.requests_client import OAuth2Session
from flask import Flask
from flask.sessions import SecureCookieSessionInterface
from joserfc.errors import JoseError
from werkzeug.wrappers import Response

from batchyard.errors import AuthenticationError, ConfigurationError, UnavailableError
from batchyard.settings import Settings
from store.sessions import User
from webapp.access.identities import Identity, identify

COOKIE = "batchyard_sign_in"
MINUTES = 10
SECONDS = 10.0
LEEWAY_SECONDS = 60
# No shared secret and no `none`, whatever the provider says.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")

log = logging.getLogger(__name__)
logging.getLogger("authlib").setLevel(logging.WARNING)  # at level DEBUG it logs what is secret


class _Session(OAuth2Session):  # type: ignore[misc]
    def request(self, method: str, url: str, **options: Any) -> Any:
        return super().request(method, url, **{"timeout": SECONDS, **options, "allow_redirects": False})


class _Client(FlaskOAuth2App):  # type: ignore[misc]
    client_cls = _Session


class _OAuth(OAuth):  # type: ignore[misc]
    oauth2_client_cls = _Client


class _Cookie(SecureCookieSessionInterface):
    """Flask's signed session cookie, which is for TLS only where the request came by TLS."""

    def get_cookie_secure(self, app: Flask) -> bool:
        return flask.request.is_secure


class Provider:
    """The OpenID provider of the settings. Raises ConfigurationError: the client's id or secret is missing."""

    def __init__(self, app: Flask, settings: Settings) -> None:
        self._settings, self._issuer = settings, settings.oidc_issuer
        if not settings.oidc_client_id or not settings.oidc_secret:
            raise ConfigurationError(
                "BATCHYARD_OIDC_ISSUER needs BATCHYARD_OIDC_CLIENT_ID, and BATCHYARD_OIDC_CLIENT_SECRET or "
                "BATCHYARD_OIDC_CLIENT_SECRET_FILE."
            )
        # All web apps of a deployment have the same key, and no further secret is to be kept.
        app.secret_key = hmac.new(settings.oidc_secret.encode(), b"batchyard sign-in cookie", hashlib.sha256).digest()
        app.session_interface = _Cookie()
        app.config["SESSION_COOKIE_NAME"] = COOKIE
        app.config["SESSION_COOKIE_SAMESITE"] = "Lax"
        app.config["PERMANENT_SESSION_LIFETIME"] = timedelta(minutes=MINUTES)
        self._client: Any = _OAuth(app).register(
            "oidc",
            client_id=settings.oidc_client_id,
            client_secret=settings.oidc_secret,
            server_metadata_url=self._issuer.rstrip("/") + "/.well-known/openid-configuration",
            client_kwargs={"scope": settings.oidc_scopes, "code_challenge_method": "S256"},
        )

    def begin(self, redirect_uri: str) -> Response:
        """Return the redirect to the provider, which sends the browser back to this URI. Raises UnavailableError."""
        self._discover()
        flask.session.clear()
        response: Response = self._client.authorize_redirect(redirect_uri)
        return response

    def finish(self) -> Identity:
        """Return whom the provider has signed in, by the code that the browser has brought.

        Raises AuthenticationError: the browser did not begin this, the provider refused, or its ID token is not valid;
        PermissionDeniedError: the user's groups open no project; UnavailableError.
        """
        issuer = self._discover()
        values = {"iss": issuer, "aud": self._settings.oidc_client_id}
        expected = {name: {"essential": True, "value": value} for name, value in values.items()}
        try:
            token = self._client.authorize_access_token(claims_options=expected, leeway=LEEWAY_SECONDS)
            claims = token.get("userinfo")
        except requests.RequestException as error:
            raise self._unavailable(error) from error
        except (AuthlibBaseError, JoseError, ValueError, KeyError, TypeError) as error:
            # Neither codes nor tokens go into the log.
            log.warning("sign-in refused: %s", type(error).__name__)
            raise AuthenticationError("The sign-in was not completed; begin it again.") from error
        finally:
            flask.session.clear()
        if not claims:
            raise AuthenticationError("The OpenID provider has sent no ID token; it needs the scope openid.")
        name = claims.get("preferred_username") or claims.get("email") or claims.get("name") or claims["sub"]
        groups = claims.get(self._settings.oidc_groups_claim)
        groups = groups if isinstance(groups, list) else [groups]
        names = [group for group in groups if isinstance(group, str)]
        return identify(self._settings, User(issuer, claims["sub"], str(name)), names)

    def _discover(self) -> str:
        """Read what the provider says of itself, once. Return its issuer. Raises UnavailableError."""
        try:
            metadata = self._client.load_server_metadata()
        except (requests.RequestException, ValueError, TypeError) as error:
            raise self._unavailable(error) from error
        issuer = str(metadata.get("issuer"))
        if issuer.rstrip("/") != self._issuer.rstrip("/"):
            self._client.server_metadata.clear()  # it may be mended: ask again
            raise UnavailableError(
                f"The OpenID provider calls itself {issuer}, and BATCHYARD_OIDC_ISSUER {self._issuer}; they must agree."
            )
        scheme = self._issuer.partition(":")[0]
        for name in _ENDPOINTS:
            if not str(metadata.get(name)).startswith(("https://", f"{scheme}://")):
                raise UnavailableError(f"The OpenID provider names no {name} with https://.")
        supported = "id_token_signing_alg_values_supported"
        offered = metadata.get(supported) or ALGORITHMS
        self._client.server_metadata[supported] = [name for name in ALGORITHMS if name in offered]
        return issuer

    def _unavailable(self, error: Exception) -> UnavailableError:
        log.error("OpenID provider not reached: %s", type(error).__name__)
        return UnavailableError(f"The OpenID provider at {self._issuer} does not answer; try again.")
