"""The models of /healthz and /readyz."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    status: Literal["ready", "not ready"]
    parts: dict[str, str] = Field(description="what each part says: `ok`, or what is wrong with it")
