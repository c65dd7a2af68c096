"""The models of /v1/files, and of /v1/uploads and /v1/imports, which bring files in parts and from buckets."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from store.intake.uploads import UploadStatus
from webapp.wire.fields import ExpiresAfter, Id, StrictBody, declare_file, from_json_text
from webapp.wire.lists import Deleted, ListPage, ListQuery

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


class FileDeleted(Deleted):
    object: Literal["file"] = "file"


FilePage = ListPage[FileObject]


class UploadOptions(BaseModel):
    """What a client says of a file that it sends."""

    purpose: UploadPurpose
    expires_after: Annotated[ExpiresAfter | None, BeforeValidator(from_json_text)] = None


class UploadForm(UploadOptions):
    """What comes with the file, which has been stored when this is looked at."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=declare_file(required=True))


class ListFiles(ListQuery):
    limit: int = Field(10000, ge=1, le=10000)
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = Field(None, min_length=1)  # also those that only OpenAI has: of these there are none


class CreateUpload(UploadOptions, StrictBody):
    """The body of POST /v1/uploads."""

    bytes: int = Field(ge=0, le=2**53, strict=True, description="of the whole file")
    filename: str = Field(strict=True, min_length=1, max_length=512)
    mime_type: str = Field(strict=True, min_length=1, max_length=255, description="taken, and needed for nothing")


class CreateImport(UploadOptions, StrictBody):
    """The body of POST /v1/imports."""

    url: str = Field(strict=True, min_length=1, max_length=1024, description="of an object, or of a folder of objects")
    join: bool = Field(True, strict=True, description="all objects as one file, or a file for each")


class ImportedFiles(BaseModel):
    """The files of an import, by the paths of their objects."""

    object: Literal["list"] = "list"
    data: list[FileObject]


class PartForm(BaseModel):
    """A part, which has been stored when this is looked at."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=declare_file(required=True, name="data"))


class CompleteUpload(StrictBody):
    """The body of POST /v1/uploads/{id}/complete."""

    part_ids: list[Id] = Field(description="the parts in the order in which they make the file")
    md5: Annotated[str, StringConstraints(strict=True, pattern="^[0-9a-fA-F]{32}$")] | None = Field(
        None, description="of the whole file, in hexadecimal digits: other bytes are refused"
    )


class UploadObject(BaseModel):
    """A file that arrives in parts."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int = Field(description="of the whole file")
    created_at: int
    expires_at: int
    filename: str
    purpose: UploadPurpose
    status: UploadStatus
    file: FileObject | None = Field(description="the file of a completed upload")


class UploadPartObject(BaseModel):
    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str
