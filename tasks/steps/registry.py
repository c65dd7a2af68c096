"""The steps by name: the built-in ones, and those that installed packages add (entry points `batchyard.steps`)."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from batchyard import json_lines
from batchyard.plugins import Registry
from batchyard.settings import Settings
from tasks.steps.step import Results, Step, StepOptions

MAX_SUMMARY_BYTES = 4096
BUILT_IN = {
    "export": "tasks.steps.export:STEP",
    "parquet": "tasks.steps.parquet:STEP",
    "score": "tasks.steps.score:STEP",
    "verify": "tasks.steps.verify:STEP",
}


def _checked(value: Any) -> tuple[str, Step[StepOptions]]:
    if not isinstance(value, Step):
        raise TypeError("is no tasks.steps.step.Step")
    if not (isinstance(value.options, type) and issubclass(value.options, StepOptions)):
        raise TypeError("has options that are no subclass of tasks.steps.step.StepOptions")
    return value.name, value


STEPS: Registry[Step[StepOptions]] = Registry("step", "batchyard.steps", BUILT_IN, _checked)


def request(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of a batch's `post_process` as the client wrote it, without the step's outcome."""
    return {key: value for key, value in entry.items() if key not in ("status", "error", "summary")}


def checks(entries: Iterable[dict[str, Any]]) -> list[Callable[[Mapping[str, Any]], tuple[str, str] | None]]:
    """Return the `check` of each installed step of a `post_process`, with its options."""
    names = STEPS.names()
    steps = [(STEPS.get(entry["step"]), entry) for entry in entries if entry["step"] in names]
    return [
        partial(step.check, options=step.options.model_validate(request(entry)))
        for step, entry in steps
        if step.check is not None
    ]


def permit(entries: Iterable[dict[str, Any]], settings: Settings, project_id: str) -> None:
    """Raise PermissionDeniedError for a step that the operator does not allow a project with these options."""
    names = STEPS.names()
    for entry in entries:
        step = STEPS.get(entry["step"]) if entry["step"] in names else None
        if step is not None and step.permit is not None:
            step.permit(settings, project_id, step.options.model_validate(request(entry)))


def run(entry: dict[str, Any], results: Results) -> dict[str, Any]:
    """Run a step of `post_process`. Return its status and summary, if any. Raises ValueError for a long summary."""
    step = STEPS.get(entry["step"])
    summary = step.run(results, step.options.model_validate(entry))
    if not summary:
        return {"status": "completed"}
    text = json_lines.dumps(dict(summary))
    if len(text) > MAX_SUMMARY_BYTES:
        raise ValueError(f"its summary has {len(text):,} bytes, at most {MAX_SUMMARY_BYTES:,} are kept")
    return {"status": "completed", "summary": json_lines.loads(text)}
