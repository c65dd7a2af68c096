"""The rows of `batchyard.map` as a job of recipe `cascade`: its answers, and who gave each."""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from batchyard import json_lines
from batchyard.client import asking, resume
from batchyard.client.answers import RowAnswer, Structure
from batchyard.client.api import ApiClient, uploaded
from batchyard.client.asking import CallOptions, RowResults
from batchyard.client.frames import Column
from batchyard.client.progress import follow, problems
from batchyard.errors import ConfigurationError, RequestError
from batchyard.statuses import TERMINAL
from batchyard.tables.cells import CellError

RECIPE, ANSWERS = "cascade", "answers.jsonl"
Make = Callable[[asking.Values], Mapping[str, Any]]
"""Returns the body of a row's request."""


class CascadeResults(RowResults):
    """The answers of a cascade with these options of its recipe."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = {name: value for name, value in options.items() if value is not None}
        self._lines: dict[int, Mapping[str, Any]] = {}

    def keep(self, row: int, body: Mapping[str, Any]) -> str | None:
        self._lines[row] = body
        return None

    def columns(self, structure: Structure | None) -> dict[str, Column]:
        """Return the texts of the answers."""
        return {"answer": self._column("answer")}

    def ask(self, _model: str, rows: Iterable[asking.Values], make: Make, how: CallOptions) -> None:
        """Run the recipe over the rows. Raises as `ask_cascade`."""
        ask_cascade(rows, make, self, how, self._options)

    def beside(self, *, details: bool, finish_reason: bool) -> dict[str, Column]:
        """Return which model answered each row, and how sure the small one was."""
        if not details:
            return {}
        return {"answered_by": self._column("answered_by"), "confidence": self._column("confidence", "number")}

    def _column(self, name: str, kind: Any = "string") -> Column:
        return Column([self._lines.get(row, {}).get(name) for row in range(len(self))], kind)


def ask_cascade(
    rows: Iterable[asking.Values],
    make: Make,
    results: CascadeResults,
    how: CallOptions,
    options: Mapping[str, Any],
) -> None:
    """Run recipe `cascade` over the rows, or take up its job, and put what became of each row into `results`.

    Args:
        make: returns the body of a row's request. All have the same model and parameters.
        options: of the recipe, without the model and the parameters.

    Raises:
        ConfigurationError: no row can be sent.
        RequestError: the server refuses the job, or it has not completed.
        UnavailableError: the server cannot be reached; the same call goes on once it can.
    """
    server = how.connected()
    with tempfile.TemporaryDirectory(prefix="batchyard-") as folder:
        file = Path(folder) / f"{how.name}.jsonl"
        model, parameters = None, {}
        with file.open("wb") as stream:
            for values in rows:
                row = results.add()
                try:
                    body = dict(make(values))
                except CellError as error:
                    results.refuse(row, error)
                    continue
                stream.write(json_lines.line({"custom_id": f"row-{row}", "messages": body.pop("messages")}))
                model, parameters = body.pop("model"), body
        if model is None:
            raise ConfigurationError(f"no row can be sent; {results.unusable or 'all have an empty cell'}")
        job = _job(server, file, how, {"model": model, "sampling": parameters, **options})
        answers = Path(folder) / ANSWERS
        artifact = next((each for each in job["batchyard"]["artifacts"] if each["name"] == ANSWERS), None)
        if artifact is None or _is_unfinished(job):
            reasons = [*problems(job, 1), *(warning["message"] for warning in job["batchyard"]["warnings"])]
            raise RequestError(f"job {job['id']} of the rows is {job['status']}: {'; '.join(reasons) or 'no reason'}")
        server.download(artifact["file_id"], answers)
        with answers.open("rb") as lines:
            for line in map(json_lines.loads, lines):
                failure = line["error"]
                reason = f"{failure['code']}: {failure['message']}" if failure else None
                answer = RowAnswer(line["custom_id"], None if failure else line, reason, line["tokens"])
                results.record(int(line["custom_id"].removeprefix("row-")), answer)
    results.close()
    metrics = job["batchyard"]["metrics"]
    simulated = " (simulated)" if job["batchyard"]["simulated"] else ""
    said = f"{options['proxy']} answered {metrics.get('proxy', 0):,} of {metrics.get('rows', 0):,} rows{simulated}"
    for text in (said, *(warning["message"] for warning in job["batchyard"]["warnings"])):
        click.echo(f"cascade: {text}", err=True)


def _job(server: ApiClient, file: Path, how: CallOptions, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job of the rows, an earlier one of the same call or a new one, when it has ended."""
    mark = resume.mark(server, "map", resume.sha256(file), options)
    earlier = resume.Earlier(() if how.again else server.jobs(recipe=RECIPE))
    job = earlier.find(mark, resume.AGAIN if how.progress else None)
    if job is None or _is_unfinished(job):  # a new job takes the rounds that have completed
        with uploaded(server, server.upload(file, "user_data")) as file_id:
            again = {"reuse": False} if how.again else {}
            job = server.create_job(
                recipe=RECIPE,
                input_file_id=file_id,
                options={**options, **again},
                completion_window=how.window,
                metadata=mark,
            )
    latest = [job]

    def fetch() -> list[dict[str, Any]]:
        if latest[0]["status"] not in TERMINAL:
            latest[0] = server.job(latest[0]["id"])
        return latest

    interrupted = partial(resume.goes_on, server, latest)
    return follow(fetch, lambda jobs: _drawn(jobs[0]), _drawn, interrupted, quiet=not how.progress)[0]


def _is_unfinished(job: Mapping[str, Any]) -> bool:
    """True for a job that has ended without the answers of its last round."""
    return job["status"] in TERMINAL and "rows" not in (job["batchyard"]["metrics"] or {})


def _drawn(job: Mapping[str, Any]) -> str:
    counts = job["request_counts"]
    return f"{job['status']:11}  {counts['completed']} of at most {counts['total']} rounds have ended"
