"""Every error of our own, in one tree, with the HTTP status it answers.

BatchyardError                     500
├── ConfigurationError             500  settings, models.toml, a port or folder that cannot be used
├── RequestError                   400  what a client sent
│   ├── AuthenticationError        401
│   ├── PermissionDeniedError      403
│   ├── NotFoundError              404
│   ├── ConflictError              409
│   ├── TooLargeError              413
│   └── RateLimitError             429  too much at once: later it may be accepted
├── UnavailableError               503  broker, database or artifact store is away or full
│   └── GpuBusy                     503  other models' engines have what this one needs
├── LeaseLost                      500  another holder has the work now
└── EngineError                    500
    ├── EngineStartError           500  the engine cannot be started at all
    └── EngineDied                 500  the engine's process ended while it held requests
"""

from __future__ import annotations


class BatchyardError(Exception):
    """The root: a message for people, naming the thing, the place and the remedy."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class ConfigurationError(BatchyardError):
    """Settings, models.toml, a folder or a port cannot be used as they are."""


class RequestError(BatchyardError):
    """The client sent something that cannot be accepted."""

    status = 400
    type = "invalid_request_error"


class AuthenticationError(RequestError):
    """No API key, or one that is unknown or revoked."""

    status = 401
    code = "invalid_api_key"


class PermissionDeniedError(RequestError):
    """The key is valid but may not do this."""

    status = 403
    code = "insufficient_permissions"


class NotFoundError(RequestError):
    """No such thing in the caller's project."""

    status = 404


class ConflictError(RequestError):
    """The thing's state does not allow this; trying again will not help."""

    status = 409


class TooLargeError(RequestError):
    """More bytes than the deployment accepts."""

    status = 413


class RateLimitError(RequestError):
    """More than the caller may send now; `retry_after` says in how many seconds it may be accepted."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after: float, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message, code=code, param=param)
        self.retry_after = retry_after


class UnavailableError(BatchyardError):
    """A part the request needs is away; the same call may succeed later."""

    status = 503


class GpuBusy(UnavailableError):
    """Engines of other models are at work on what this one needs; `holders` names those models."""

    def __init__(self, message: str, *, holders: list[str]) -> None:
        super().__init__(message)
        self.holders = holders


class LeaseLost(BatchyardError):
    """The lease's epoch is gone: another holder has the work, and nothing more may be written."""


class EngineError(BatchyardError):
    """An engine could not do its work."""


class EngineStartError(EngineError):
    """The engine cannot be started; the message holds the engine's own reason."""


class EngineDied(EngineError):
    """The engine's process ended, or stopped answering, while it held requests."""
