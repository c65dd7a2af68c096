"""Files, those that batches and jobs produced, and files that arrive in parts."""

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from store.records.base import Base, OfProject, id_column, now


class File(OfProject, Base):
    """A file of a project. A deleted one keeps its row for a while, with the time of its deletion as `expires_at`."""

    __tablename__ = "files"
    id: Mapped[str] = id_column("file-")
    filename: Mapped[str] = mapped_column(String(512))
    purpose: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    created_at: Mapped[int] = mapped_column(default=now)
    expires_at: Mapped[int | None] = mapped_column(index=True)
    # The second index alone serves the sum of a project's bytes.
    __table_args__ = (Index(None, "project_id", "id"), Index(None, "project_id", "expires_at", "bytes"))


class _Produced:
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    file_id: Mapped[str] = mapped_column(ForeignKey("files.id"), index=True)
    lines: Mapped[int | None]


class Artifact(_Produced, Base):
    """A file that a batch produced, with its name in that batch."""

    __tablename__ = "artifacts"
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"), primary_key=True, sort_order=-1)


class JobArtifact(_Produced, Base):
    """A file that a job produced, with its name in that job."""

    __tablename__ = "job_artifacts"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True, sort_order=-1)


class ErasedContent(Base):
    """Content of what was erased at `erased_at` (Unix seconds), until it is gone from the artifact store."""

    __tablename__ = "erased_content"
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    erased_at: Mapped[float]


class FileUpload(OfProject, Base):
    """A file that arrives in parts, as OpenAI's Upload. It has `bytes` bytes, as its client says, when it is whole.

    `status` is pending, completed or cancelled; a pending one has expired at `expires_at`. `part_ids` are the parts of
    the completed one in their order, `file_id` is the file that they became, and `file_expires_after` the seconds after
    which that expires.
    """

    __tablename__ = "uploads"
    id: Mapped[str] = id_column("upload_")
    filename: Mapped[str] = mapped_column(String(512))
    purpose: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int]
    status: Mapped[str] = mapped_column(String(16), default="pending")
    created_at: Mapped[int] = mapped_column(default=now)
    expires_at: Mapped[int] = mapped_column(index=True)
    file_expires_after: Mapped[int | None]
    part_ids: Mapped[list[str] | None]
    file_id: Mapped[str | None] = mapped_column(String(64))


class UploadPart(Base):
    """A part of a pending upload. Its content is in the artifact store; the same content again is the same part."""

    __tablename__ = "upload_parts"
    id: Mapped[str] = id_column("part_")
    upload_id: Mapped[str] = mapped_column(ForeignKey("uploads.id"))
    bytes: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    created_at: Mapped[int] = mapped_column(default=now)
    __table_args__ = (UniqueConstraint("upload_id", "sha256"),)
