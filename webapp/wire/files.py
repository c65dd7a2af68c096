"""The models of /v1/files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from webapp.wire.fields import ExpiresAfter, declare_file, from_json_text
from webapp.wire.lists import ListPage

UploadPurpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: UploadPurpose | Literal["batch_output"]
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class FilePage(ListPage[FileObject]):
    pass


class UploadForm(BaseModel):
    """What comes with the file, which has been stored when this is looked at."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=declare_file(required=True))
    purpose: UploadPurpose
    expires_after: Annotated[ExpiresAfter | None, BeforeValidator(from_json_text)] = None


class ListFiles(BaseModel):
    after: str | None = Field(None, description="the id of the last file of the page before")
    limit: int = Field(10000, ge=1, le=10000)
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = Field(None, min_length=1)
