"""The models of /v1/schedules."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from store.schedules import CatchUp, Overlap, State
from webapp.wire.batches import ScheduledBatch
from webapp.wire.fields import Name, OneOf, StrictBody
from webapp.wire.jobs import JobArtifactName, JobOptions
from webapp.wire.lists import Deleted, ListPage

Expression = Annotated[str, StringConstraints(strict=True, max_length=128)]
TimeZone = Annotated[str, StringConstraints(strict=True, max_length=64)]


class ScheduleInputObject(BaseModel):
    """What the runs of a schedule are made of; `sha256` is that of the content that is kept for them."""

    kind: Literal["file", "artifact", "template", "url", "watch"]
    file_id: str | None
    artifact: JobArtifactName | None
    url: str | None = Field(None, description="where each run reads its objects, or the watched objects")
    sha256: str | None = Field(description="null for a URL")
    bytes: int


class ScheduleRunObject(BaseModel):
    """One run of a schedule, and what has become of it."""

    id: str
    object: Literal["schedule.run"] = "schedule.run"
    schedule_id: str
    scheduled_at: int | None = Field(description="the time that was due; null if it was asked for by hand")
    missed_from: int | None = Field(description="the first of the times before that were missed and are not run")
    state: State
    batch_id: str | None
    job_id: str | None
    reason: str | None = Field(description="why there is neither")
    created_at: int


class ScheduleObject(BaseModel):
    id: str
    object: Literal["schedule"] = "schedule"
    name: str
    cron: str
    timezone: str
    input: ScheduleInputObject
    batch: ScheduledBatch | None
    job: JobOptions | None
    overlap: Overlap
    catch_up: CatchUp
    paused: bool
    created_at: int
    next_run_at: int | None = Field(description="null while it is paused")
    next_runs: list[int] = Field(description="the next five times, from next_run_at on")
    last_run: ScheduleRunObject | None


class ScheduleDeleted(Deleted):
    object: Literal["schedule"] = "schedule"


SchedulePage = ListPage[ScheduleObject]
ScheduleRunPage = ListPage[ScheduleRunObject]


class ScheduleInput(OneOf):
    """What each run is made of: one of these."""

    choices = ("file_id", "artifact", "template", "url", "watch")
    file_id: str | None = Field(
        None, strict=True, max_length=64, description="an uploaded batch file, or the rows of a job"
    )
    artifact: JobArtifactName | None = None
    template: str | None = Field(
        None,
        strict=True,
        description="a batch file's text, or the rows of a job as JSON lines, with {{date}}, {{datetime}} and "
        "{{scheduled_at}}, which each run fills",
    )
    url: str | None = Field(
        None,
        strict=True,
        max_length=1024,
        description="of a bucket that the operator allows: the objects there at the time of each run, joined to one "
        "file; with the places of a template, such as s3://bucket/in/{{date}}/",
    )
    watch: str | None = Field(
        None,
        strict=True,
        max_length=1024,
        description="objects of a folder that the operator allows for input and output, such as "
        "s3://bucket/in/*.jsonl: each new one becomes a batch or job, with its outcome beside it as NAME.outcome.json",
    )


class CreateSchedule(StrictBody):
    """A schedule makes either batches or jobs: it has one of `batch` and `job`."""

    name: Name
    cron: Expression = Field(description="minute, hour, day of month, month, day of week: '30 6 * * MON-FRI'")
    timezone: TimeZone = Field("UTC", description="IANA name: 'Europe/Berlin'")
    input: ScheduleInput
    batch: ScheduledBatch | None = Field(
        None, description="the places of a template are filled in metadata's values, too"
    )
    job: JobOptions | None = Field(None, description="likewise")
    overlap: Overlap = Field("skip", description="what a run does when what an earlier one made has not ended")
    catch_up: CatchUp = Field("latest", description="what is run of times that were missed")
    paused: bool = Field(False, strict=True)


class UpdateSchedule(StrictBody):
    """What is left out stays as it is."""

    name: Name | None = None
    cron: Expression | None = None
    timezone: TimeZone | None = None
    input: ScheduleInput | None = None
    batch: ScheduledBatch | None = None
    job: JobOptions | None = None
    overlap: Overlap | None = None
    catch_up: CatchUp | None = None
