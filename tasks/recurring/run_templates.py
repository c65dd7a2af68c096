"""Run templates: a schedule's input, a file, artifact or template, pinned by SHA-256, or a URL that each run reads.

A template is the text of a batch file, or the rows of a job as JSON lines. Each run replaces `{{date}}`, `{{datetime}}`
and `{{scheduled_at}}` by its time: 2026-11-21 and 2026-11-21T06:30:00+01:00 in the schedule's zone, and Unix seconds.
It replaces nothing else.
"""

import io
import re
from collections.abc import Mapping
from datetime import UTC
from typing import Any

from batchyard.cron import Cron
from batchyard.errors import RequestError
from batchyard.request_lines.lines import LineError, parse
from batchyard.settings import Settings
from batchyard.wording import MAX_MESSAGE, cut
from store.formats.lines import numbered_lines
from store.intake.buckets import Bucket, check_url
from store.jobs.dependencies import find_artifact
from store.records import File, Schedule, now
from tasks.context import AppContext
from tasks.intake import imports, submission
from tasks.intake.requests import RequestChecker
from tasks.intake.submission import NewInput
from tasks.port import port

MAX_STARS = 3
"""In the pattern of a watched folder."""
_ANY_TIME = Cron("* * * * *", UTC)
_PLACEHOLDER = re.compile(r"\{\{\s*(date|datetime|scheduled_at)\s*\}\}")


def fill(text: str, cron: Cron, at: int) -> str:
    """Return the text with the placeholders of a run at Unix time `at` filled."""
    local = cron.local(at)
    values = {"date": local.date().isoformat(), "datetime": local.isoformat(), "scheduled_at": str(at)}
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def fill_values(metadata: Mapping[str, str] | None, cron: Cron, at: int) -> dict[str, str] | None:
    return None if metadata is None else {key: fill(value, cron, at) for key, value in metadata.items()}


def pin(
    context: AppContext, project_id: str, source: Mapping[str, Any], *, of_job: bool = False
) -> tuple[dict[str, Any], str]:
    """Return the record of an input and the SHA-256 of its content. Stores a template.

    `source` has `file_id`, `artifact`, `template`, `url` and `watch`, one of them not None. Jobs read more formats than
    batches.
    Raises RequestError: the project has no such file or artifact of ended work; or it may not read the URL.
    """
    if source.get("url") is not None:
        imports.bucket(context.settings, project_id, fill(source["url"], _ANY_TIME, now()), param="input.url")
        return _record("url", 0) | {"url": source["url"]}, ""
    if source.get("watch") is not None:
        watched_folder(context.settings, project_id, source["watch"])
        return _record("watch", 0) | {"url": source["watch"]}, ""
    if source["template"] is not None:
        content = source["template"].encode()
        return _record("template", len(content)), context.artifacts.put(content)
    artifact = source["artifact"]
    with context.database.read() as session:
        if artifact is None:
            purposes = submission.JOB_PURPOSES if of_job else ("batch",)
            file = submission.input_file(
                session, project_id, source["file_id"], param="input.file_id", purposes=purposes
            )
            if of_job:
                port().check_file(file.filename, "input.file_id")
            return _record("file", file.bytes, file.id), file.sha256
        owner_id = artifact.get("job_id") or artifact["batch_id"]
        output = find_artifact(session, project_id, owner_id, artifact["name"])
    if output is None:
        message = f"No artifact '{artifact['name']}' of an ended batch or job '{owner_id}' found."
        raise RequestError(message, code="invalid_value", param="input.artifact")
    if of_job:
        port().check_file(output.filename, "input.artifact")
    return _record("artifact", output.bytes, output.id, artifact), output.sha256


def watched_folder(settings: Settings, project_id: str, url: str) -> Bucket:
    """Return the folder of a URL that ends in a pattern of names.

    Raises RequestError: it has no such pattern. PermissionDeniedError: the folder may not be read and written.
    """
    folder, _, pattern = url.rpartition("/")
    if not pattern or pattern.count("*") > MAX_STARS:
        message = f"'{url}' has to end in a pattern of names with at most {MAX_STARS} stars, such as *.jsonl."
        raise RequestError(message, code="invalid_value", param="input.watch")
    source = imports.bucket(settings, project_id, folder, param="input.watch")
    check_url(folder, settings.output_prefix_list, project_id, "BATCHYARD_OUTPUT_PREFIXES", "input.watch", "written")
    return source


def _record(
    kind: str, size: int, file_id: str | None = None, artifact: Mapping[str, str] | None = None
) -> dict[str, Any]:
    return {"kind": kind, "bytes": size, "file_id": file_id, "artifact": artifact}


def check_template(context: AppContext, endpoint: str, text: str, cron: Cron) -> None:
    """Raise RequestError for the first line of a template that validation would refuse."""
    checker = RequestChecker(context.models, models_file=context.settings.models)
    count = 0
    for number, raw in numbered_lines(io.BytesIO(fill(text, cron, now()).encode())):
        count += 1
        try:
            checker.check(endpoint, parse(number, raw))
        except LineError as error:
            message = f"Line {number} of the template: {cut(error.message, MAX_MESSAGE)}"
            raise RequestError(message, code=error.code, param="input.template") from None
    if not count:
        raise RequestError("The template has no requests.", code="empty_file", param="input.template")


def template(context: AppContext, schedule: Schedule) -> str | None:
    """Return the text of a schedule's template; None if its input is a file. Raises UnavailableError."""
    if schedule.input["kind"] != "template":
        return None
    return context.artifacts.read(schedule.input_sha256).decode()


def source(context: AppContext, schedule: Schedule, cron: Cron, at: int) -> File | NewInput:
    """Return the input of a run at Unix time `at`, of a deleted file, too. Raises RequestError, UnavailableError."""
    if schedule.input["kind"] == "url":
        imported = imports.joined(context, schedule.project_id, fill(schedule.input["url"], cron, at))
        if schedule.job is not None:
            port().check_file(imported.name, "input.url")
        return imported
    text = template(context, schedule)
    if text is None:
        with context.database.read() as session:
            return session.get_one(File, schedule.input["file_id"])
    with context.artifacts.create() as content:
        content.write(fill(text, cron, at).encode())
    return NewInput(f"{schedule.id}_{at}.jsonl", content)
