"""The files of a project, grouped by the batch or the job that they belong to."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias, get_args

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from store import listing
from store.files import live
from store.records import Artifact, Batch, File, Job, JobArtifact, ScheduleRun, now
from store.work import overview
from store.work.lifecycle import AnyArtifact, artifact_table, artifacts_of
from store.work.overview import Work

Kind: TypeAlias = Literal["input", "output", "errors", "manifest", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order in which the files of a batch or a job stand."""
INPUT: Kind = "input"
OF_NO_WORK = and_(
    *(~select(table.file_id).where(table.file_id == File.id).exists() for table in (Artifact, JobArtifact)),
    *(~select(record.id).where(record.input_file_id == File.id).exists() for record in (Batch, Job)),
)
"""The condition for files that no batch and no job needs or has produced."""
_NAMES: Mapping[str, Kind] = MappingProxyType({"errors.jsonl": "errors", "manifest.json": "manifest"})


@dataclass(frozen=True)
class FileFilter:
    """Which files are listed; None means any.

    `text` is part of a file's name or id, or of those of its batch or job. `outputs` are the artifacts that count as
    `output`. `runs` lists files of schedules' runs, too.
    """

    outputs: Collection[str]
    text: str | None = None
    kind: Kind | None = None
    runs: bool = False

    def kind_of(self, name: str) -> Kind:
        if name in self.outputs:
            return "output"
        return _NAMES.get(name, "other")

    def of_work(self, record: type[Work]) -> ColumnElement[bool]:
        conditions = [or_(*self._has(record))]
        if self.text is not None:
            named = or_(*(column.icontains(self.text, autoescape=True) for column in (record.name, record.id)))
            conditions.append(or_(named, *self._has(record, self.text)))
        if not self.runs:
            run = ScheduleRun.batch_id if record is Batch else ScheduleRun.job_id
            conditions.append(~select(run).where(run == record.id).exists())
        return and_(*conditions)

    def _has(self, record: type[Work], text: str | None = None) -> Iterator[ColumnElement[bool]]:
        """Yield the conditions for work with an input, or an artifact, of this kind and with this text in its name."""
        at = now()
        if self.kind in (None, INPUT):
            named = [] if text is None else [_named(text)]
            yield select(File.id).where(File.id == record.input_file_id, live(at), *named).exists()
        if self.kind != INPUT:
            artifact, owner = artifact_table(record)
            named = [] if text is None else [or_(artifact.name.icontains(text, autoescape=True), File.id == text)]
            of_kind = [] if self.kind is None else [self._is_kind(artifact)]
            joined = select(File.id).join(artifact, artifact.file_id == File.id)
            yield joined.where(owner == record.id, live(at), *named, *of_kind).exists()

    def _is_kind(self, artifact: type[AnyArtifact]) -> ColumnElement[bool]:
        kinds = dict[str, Kind](_NAMES) | dict.fromkeys(self.outputs, "output")
        if self.kind == "other":
            return artifact.name.not_in(kinds)
        return artifact.name.in_([name for name, kind in kinds.items() if kind == self.kind])


class FileEntry(NamedTuple):
    """A file as what it is to its batch or job. `label` is the name of an artifact, of an input that of the file."""

    kind: Kind
    label: str
    file: File
    lines: int | None

    @property
    def what(self) -> str:
        """What the file is, in a word or two."""
        return self.kind if self.kind != "other" else self.label.partition(".")[0].replace("-", " ")


@dataclass
class FileGroup:
    """The files of a batch or of a job. `started` counts its stages and jobs, which have files of their own."""

    work: Work
    entries: list[FileEntry] = field(default_factory=list)
    started: int = 0


def page(
    session: Session, project_id: str, wanted: FileFilter, *, after: str | None, limit: int
) -> tuple[list[FileGroup], bool]:
    """Return the groups of files by work, newest first, and if more follow. Raises RequestError."""
    records, has_more = overview.page(
        session, project_id, sort="newest", after=after, limit=limit, condition=wanted.of_work
    )
    input_ids = {record.input_file_id for record in records} - {None}
    inputs = {file.id: file for file in session.scalars(select(File).where(File.id.in_(input_ids), live(now())))}
    started = _started(session, [record.id for record in records if isinstance(record, Job)])
    groups = []
    for record in records:
        group = FileGroup(record, started=started.get(record.id, 0))
        if record.input_file_id in inputs:
            source = inputs[record.input_file_id]
            group.entries.append(FileEntry(INPUT, source.filename, source, record.total or None))
        groups.append(group)
    for kind in (Batch, Job):
        of_kind = [group for group in groups if isinstance(group.work, kind)]
        by_owner = artifacts_of(session, kind, [group.work.id for group in of_kind])
        for group in of_kind:
            group.entries += [
                FileEntry(wanted.kind_of(artifact.name), artifact.name, file, artifact.lines)
                for artifact, file in by_owner[group.work.id]
                if file.expires_at is None or file.expires_at > now()
            ]
    for group in groups:
        group.entries = [entry for entry in group.entries if wanted.kind in (None, entry.kind)]
        group.entries.sort(key=lambda entry: (KINDS.index(entry.kind), entry.label))
    return groups, has_more


def unused(
    session: Session, project_id: str, text: str | None, *, after: str | None, limit: int
) -> tuple[Sequence[File], bool]:
    """Return files of no work, newest first, and if more follow. Raises RequestError."""
    shown = and_(live(now()), OF_NO_WORK)
    if text is not None:
        shown = and_(shown, _named(text))
    return listing.page(
        session, File, File.project_id == project_id, after=after, limit=limit, descending=True, shown=shown
    )


def _named(text: str) -> ColumnElement[bool]:
    return or_(File.filename.icontains(text, autoescape=True), File.id == text)


def _started(session: Session, job_ids: Sequence[str]) -> dict[str | None, int]:
    counts: dict[str | None, int] = {}
    for owner in (Batch.job_id, Job.parent_id):
        for job_id, count in session.execute(select(owner, func.count()).where(owner.in_(job_ids)).group_by(owner)):
            counts[job_id] = counts.get(job_id, 0) + count
    return counts
