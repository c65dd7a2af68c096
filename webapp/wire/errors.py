"""Errors: what every request that fails is answered with."""

from __future__ import annotations

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorObject(BaseModel):
    """What every request that fails is answered with."""

    error: ErrorDetail
