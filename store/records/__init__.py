"""Records: the tables of the database.

Times are Unix seconds: integers where clients see them, floats where only leases and rates use them. Some columns have
an older name than their attribute.
"""

from store.records.base import AMOUNTS, AnswerAmounts, Base, Sla, added, first_id, new_id, now
from store.records.batches import Append, AppendedId, Batch, ResultChunk, Segment
from store.records.engines import Duration, EngineFailure, Hold, ModelChange, Speed
from store.records.events import Delivery, Event, Schedule, ScheduleRun, WatchedObject, Webhook
from store.records.files import Artifact, ErasedContent, File, FileUpload, JobArtifact, UploadPart
from store.records.jobs import ChunkKind, Job, JobChunk, JobReply, JobStage, ReplyKind
from store.records.projects import ApiKey, Budget, CachedAnswer, DailyUsage, Project, WebSession
