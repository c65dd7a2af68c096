"""The models of /healthz, /version and /readyz."""

from typing import Literal

from pydantic import BaseModel, Field

from batchyard import __version__


class Health(BaseModel):
    status: Literal["ok"] = "ok"
    version: str = Field(__version__, description="of Batchyard")


class Version(BaseModel):
    version: str = Field(__version__, description="of Batchyard")


class Readiness(BaseModel):
    status: Literal["ready", "not ready"]
    parts: dict[str, str] = Field(description="what each part says: `ok`, or what is wrong with it")
