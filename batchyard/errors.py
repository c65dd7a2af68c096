"""Batchyard's errors in one tree, each with its HTTP status.

BatchyardError                     500
├── ConfigurationError             500  settings, models.toml, a port or folder that cannot be used
├── RequestError                   400  the client's request cannot be accepted
│   ├── AuthenticationError        401
│   ├── PermissionDeniedError      403
│   ├── NotFoundError              404
│   ├── TooSlowError               408  the client sends too slowly
│   ├── ConflictError              409
│   ├── TooLargeError              413
│   ├── EncodingError              415  a Content-Encoding that is not read
│   └── RateLimitError             429  over a rate limit; may be accepted later
├── UnavailableError               503  broker, database or artifact store is unreachable or full
│   ├── ArtifactMissing             503  the artifact store does not have the content, or has it damaged
│   └── GpuBusy                     503  other models' engines hold the GPUs
├── LeaseLost                      500  another holder has the lease now
├── Stopped                        500  the work is no longer wanted
└── EngineError                    500
    ├── EngineStartError           500  the engine cannot be started at all
    └── EngineDied                 500  the engine's process ended while it held requests
"""

from typing import Any


class BatchyardError(Exception):
    """The root. Messages are for people: they name the thing, the place and the remedy."""

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
    """A setting, models.toml, a folder or a port cannot be used."""


class RequestError(BatchyardError):
    """The client's request cannot be accepted."""

    status = 400
    type = "invalid_request_error"


class AuthenticationError(RequestError):
    """The API key is missing, unknown or revoked."""

    status = 401
    code = "invalid_api_key"


class PermissionDeniedError(RequestError):
    """The key is valid but may not do this."""

    status = 403
    code = "insufficient_permissions"


class NotFoundError(RequestError):
    """The caller's project has no such object."""

    status = 404


class TooSlowError(RequestError):
    """The client sends its request more slowly than the deployment waits."""

    status = 408
    code = "request_too_slow"


class ConflictError(RequestError):
    """The object's state does not allow this; retrying will not help."""

    status = 409


class TooLargeError(RequestError):
    """The request has more bytes than the deployment accepts."""

    status = 413


class EncodingError(RequestError):
    """The request's body is compressed in a way that is not read."""

    status = 415
    code = "unsupported_content_encoding"


class RateLimitError(RequestError):
    """The caller sends too much now; it may be accepted after `retry_after` seconds."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after: float, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message, code=code, param=param)
        self.retry_after = retry_after


class UnavailableError(BatchyardError):
    """A service that the request needs is unreachable; the same call may succeed later."""

    status = 503


class ArtifactMissing(UnavailableError):
    """The artifact store lacks content that a record refers to, or has it damaged: waiting hardly helps."""


class GpuBusy(UnavailableError):
    """Busy engines of other models hold the GPUs; `holders` names the models."""

    def __init__(self, message: str, *, holders: list[str]) -> None:
        super().__init__(message)
        self.holders = holders


class LeaseLost(BatchyardError):
    """The lease's epoch is over: another holder has the work, so write nothing more."""


class Stopped(BatchyardError):
    """The work is no longer wanted: its wait ended before its result was there."""

    def __init__(self) -> None:
        super().__init__("the work was stopped")


class EngineError(BatchyardError):
    """An engine failed."""


class EngineStartError(EngineError):
    """The engine cannot be started; the message has the engine's own reason."""


class EngineDied(EngineError):
    """The engine's process ended, or stopped answering, while it held requests."""


def value_code(kind: str, value: Any) -> str:
    """Return OpenAI's code for pydantic's type of error; all literals are texts."""
    wrong_type = kind.endswith("_type") or kind == "int_from_float"
    return "invalid_type" if wrong_type or (kind == "literal_error" and not isinstance(value, str)) else "invalid_value"
