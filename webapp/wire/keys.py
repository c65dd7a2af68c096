"""The models of /v1/keys."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from batchyard import durations
from webapp.wire.fields import Name, Window
from webapp.wire.lists import ListPage


class KeyObject(BaseModel):
    """An API key; `key` is shown once, when it is made."""

    id: str
    object: Literal["api_key"] = "api_key"
    project: str
    admin: bool
    label: str | None = Field(description="whose it is, or what it is for")
    created_at: int
    expires_at: int | None = Field(description="from then on it opens nothing; null: it has no end")
    last_used_at: int | None = Field(description="to a few minutes")
    revoked_at: int | None


class NewKeyObject(KeyObject):
    key: str


class KeyPage(ListPage[KeyObject]):
    pass


class CreateKey(BaseModel):
    model_config = ConfigDict(extra="forbid")
    project: str = Field(strict=True, description="name of the project, which is made if there is none")
    admin: bool = Field(False, strict=True)
    label: Name | None = None
    expires_after: Window | None = Field(None, description="for how long it opens the project; null: for good")

    @property
    def expires_after_seconds(self) -> int | None:
        return None if self.expires_after is None else durations.seconds(self.expires_after)


class ListKeys(BaseModel):
    project: str | None = Field(None, min_length=1, description="only this project's")
    after: str | None = Field(None, description="the id of the last key of the page before")
    limit: int = Field(100, ge=1, le=1000)
