"""The kind of recipes whose items are jobs: records ended ones and starts the next.

A child is found again by its composite and its key, which are unique together, so nothing starts twice. A tick commits
all that it decides in one transaction.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from batchyard import json_lines
from batchyard.errors import ArtifactMissing, RequestError, UnavailableError
from batchyard.models import ModelSpec
from batchyard.recipes import Child, CompositeOptions, CompositeRecipe, Options
from batchyard.statuses import NEVER_ENDED, TERMINAL
from jobs.catalogue import catalogue_of
from jobs.intake import identity, rows
from jobs.intake import options as job_options
from jobs.intake.drafts import Configuration, JobDraft, Submission
from jobs.kinds import nested
from jobs.kinds.flow import FLOW
from jobs.kinds.kind import ChildRow, JobEstimate, RecipeKind, Warnings
from jobs.kinds.nested import ChildInput, recorded
from jobs.kinds.plan import ChildStart, plan
from store.formats import items as items_file
from store.jobs import composites, lifecycle
from store.leases import Lease
from store.records import Job
from tasks.context import AppContext
from tasks.intake.estimate import Part, scaled
from tasks.intake.validation import ValidationReport

ENDED_BY_THE_PARENT = ("expired", "cancelled")
"""Statuses of children that a composite has ended: they have no end of their own, and get that of the composite."""
UNKNOWN_END: Warnings = [("eta_unknown", "No ETA: each of its jobs has a forecast of its own once it runs.")]


class CompositeKind(RecipeKind[CompositeRecipe[Any]]):
    def check(self, context: AppContext, recipe: CompositeRecipe[Any], sent: Submission) -> Configuration:
        options: Any = job_options.parse(context, recipe, sent.values)
        models, named = _check_children(context, _children(context, recipe, options), options, sent.completion_window)
        return Configuration(recipe, options, models, named_jobs=named)

    def estimate(self, context: AppContext, recipe: CompositeRecipe[Any], draft: JobDraft) -> JobEstimate:
        children = _children(context, recipe, recipe.options.model_validate(draft.job.options))
        return JobEstimate(len(children), warnings=UNKNOWN_END, **_work(context, draft, children))

    def write_items(
        self, context: AppContext, recipe: CompositeRecipe[Any], job: Job, report: ValidationReport
    ) -> tuple[str, int]:
        names = ("variant", "repeat", "round", "recipe", "options")
        children = enumerate(recipe.children(recipe.options.model_validate(job.options)), 1)
        return items_file.write(
            context.artifacts,
            ((n, child.key, json_lines.dumps({name: getattr(child, name) for name in names})) for n, child in children),
        )

    def tick(self, context: AppContext, lease: Lease, job: Job) -> None:
        _CompositeTick(context, lease, job).run()

    def children(self, context: AppContext, job: Job) -> list[ChildRow]:
        recipe: Any = catalogue_of(context).recipe(job.recipe)
        with context.database.read() as session:
            jobs = composites.children(session, job.id)
        try:
            ends = recorded(context, job.id)
        except ArtifactMissing:  # the composite has ended long ago, and only its artifacts have them
            ends = {}
        unended = NEVER_ENDED[job.status] if job.status in TERMINAL else "pending"
        rows = []
        for child in _children(context, recipe, recipe.options.model_validate(job.options)):
            child_job, end = jobs.get(child.key), ends.get(child.key)
            if child_job is None and job.status == "completed" and (end is None or end.state == "completed"):
                continue  # it never began, or was not needed
            result = end.result if end is not None else {}
            rows.append(
                ChildRow(
                    *(child.key, child.variant, child.repeat, child.round),
                    status=child_job.status if child_job is not None else result.get("status", unended),
                    job_id=child_job.id if child_job is not None else result.get("job_id"),
                    taken=bool(result.get("taken")),
                    metrics=(child_job.metrics if child_job is not None else result.get("metrics")) or {},
                    problem=(end.error or {}).get("message") if end is not None else None,
                )
            )
        return rows


def _children(context: AppContext, recipe: CompositeRecipe[Any], options: Options) -> list[Child]:
    children: list[Child] = job_options.ask(context, recipe, "children", options)
    return children


def _check_children(
    context: AppContext, children: Sequence[Child], options: Any, completion_window: str
) -> tuple[dict[str, ModelSpec], dict[str, tuple[str, str]]]:
    variants: dict[bytes, str] = {}
    models: dict[str, ModelSpec] = {}
    named_jobs: dict[str, tuple[str, str]] = {}
    for child in {child.variant: child for child in children}.values():
        if child.recipe in catalogue_of(context).recipes:
            nested.flow_recipe(catalogue_of(context).recipes[child.recipe])
        try:
            configuration = nested.check(context, child.recipe, child.options, completion_window)
        except RequestError as error:
            param = options.place(child.variant, error.param or "")
            raise RequestError(f"Variant '{child.variant}': {error.message}", code=error.code, param=param) from None
        if child.artifact is not None:
            rows.check_name(child.artifact, "options.round_input")
        other = variants.setdefault(identity.canonical(configuration.options.model_dump(mode="json")), child.variant)
        if other != child.variant:
            message = f"Variants '{other}' and '{child.variant}' are one configuration; leave one of them out."
            raise RequestError(message, code="same_configuration", param=f"options.variants.{child.variant}")
        models |= configuration.models
        named_jobs |= {options.place(child.variant, place): job for place, job in configuration.named_jobs.items()}
    return models, named_jobs


def _work(context: AppContext, draft: JobDraft, children: Sequence[Child]) -> dict[str, Any]:
    source = ChildInput(None, draft.job.input_sha256, draft.job.input_name or "")
    parts: dict[str, Part] | None = {}
    first: JobEstimate | None = None
    for variant, number in Counter(child.variant for child in children).items():
        child = next(child for child in children if child.variant == variant)
        child_draft = replace(nested.draft(context, draft.job, child, source), source=draft.source)
        outlook = FLOW.estimate(context, nested.flow_recipe(catalogue_of(context).recipe(child.recipe)), child_draft)
        first = first or outlook
        if outlook.parts is None or any(child.round for child in children):
            parts = None
        elif parts is not None:
            for model, part in scaled(outlook.parts, number).items():
                parts[model] = part.plus(parts[model]) if model in parts else part
    return {"parts": parts, "requests": first.requests, "errors": first.errors} if first else {}


def _works(context: AppContext, children: Sequence[Child]) -> dict[str, str]:
    works = {}
    by_options: dict[int, str] = {}
    for child in children:
        if id(child.options) not in by_options:
            schema = catalogue_of(context).recipe(child.recipe).options
            values = schema.model_validate(child.options).model_dump(mode="json")
            by_options[id(child.options)] = identity.canonical(identity.working(schema, values)).decode()
        works[child.key] = f"{by_options[id(child.options)]}/{child.repeat}/{child.round}"
    return works


class _CompositeTick(nested.Tick):
    def __init__(self, context: AppContext, lease: Lease, job: Job) -> None:
        super().__init__(context, lease, job)
        recipe: Any = catalogue_of(context).recipe(job.recipe)
        self.options: CompositeOptions = recipe.options.model_validate(job.options)
        self.children: list[Child] = list(recipe.children(self.options))

    def run(self) -> None:
        context, job, jobs, ends = self.context, self.job, self.jobs, self.ends
        ending = job.status == "cancelling" or job.outcome is not None
        if ending and any(child.status not in TERMINAL for child in jobs.values()):
            return  # the last of them wakes it
        for key, child in jobs.items():
            if child.status in TERMINAL and key not in ends and not (ending and child.status in ENDED_BY_THE_PARENT):
                self.end_child(key, job=child)
        problem = None
        if not ending and job.paused_at is None:
            statuses = {key: child.status for key, child in jobs.items()}
            statuses |= {key: end.state for key, end in ends.items()}
            try:
                chosen = plan(self.children, statuses, _works(context, self.children), self.options.parallel)
            except RequestError as error:
                raise UnavailableError(error.message) from error
            for key in chosen.never:
                self.end_child(key, "the job of the round before has not completed, so it has no input")
            for start in chosen.starts:
                try:
                    self.start(start)
                except RequestError as error:
                    problem = f"child '{start.child.key}' cannot start: {error.message}"
        if ending or self.rows or self.drafts:
            self.commit(ending=ending)
        if problem is not None:
            raise UnavailableError(problem)

    def start(self, start: ChildStart) -> None:
        """Draft a child's job, or end the child: with an equal completed job, or as not needed. Raises RequestError."""
        context, job, child = self.context, self.job, start.child
        source = ChildInput(job.input_file_id, job.input_sha256, job.input_name)
        with context.database.read() as session:
            if child.before is not None and child.artifact is not None:
                before = self.job_id(child.before)
                file = lifecycle.find_artifact(session, job.project_id, before, child.artifact)
                if file is None and child.optional:
                    place = child.variant, child.repeat
                    for later in self.children:
                        if (later.variant, later.repeat) == place and later.round >= child.round:
                            self.end_child(later.key)
                    return
                if file is None:
                    self.end_child(child.key, f"job '{before}' has no artifact '{child.artifact}'")
                    return
                source = ChildInput(file.id, file.sha256, child.artifact)
            draft = nested.draft(context, job, child, source)
            same = composites.completed(session, job.project_id, draft.job.config_sha256)
            if same is not None and self.options.reuse:
                self.end_child(child.key, job=same, taken=True)
                return
            if start.source is not None:
                earlier = session.get(Job, self.job_id(start.source))
                if earlier is not None and earlier.work_sha256 == draft.job.work_sha256:
                    draft.job.answers_from, draft.job.only_judges = earlier.id, True
        self.drafts.append(draft)

    def job_id(self, key: str) -> str:
        return self.jobs[key].id if key in self.jobs else str(self.ends[key].result["job_id"])

    def end_child(self, key: str, no_input: str | None = None, job: Job | None = None, *, taken: bool = False) -> None:
        """Add the row of a child that has ended as its `job` did, or without one."""
        number, child = next((number, child) for number, child in enumerate(self.children) if child.key == key)
        error = None if no_input is None else {"code": "no_input", "message": no_input}
        status = job.status if job else "failed" if error else "completed"
        started_at = ended_at = time.time()
        if job:
            started_at = float(job.in_progress_at or job.created_at)
            ended_at = float(job.finalizing_at or job.failed_at or ended_at)
            if status != "completed":
                first = next(iter(job.errors or []), {"message": f"job '{job.id}' is {status}"})
                error = {"code": f"job_{status}", "message": first["message"]}
        result: dict[str, Any] = {
            **{"text": None, "variant": child.variant, "repeat": child.repeat, "round": child.round},
            **{"job_id": job and job.id, "status": status, "taken": taken},
            **{"config_sha256": job and job.config_sha256, "metrics": job and job.metrics},
        }
        self.end(number, key, result, error, started_at, ended_at)


COMPOSITE = CompositeKind()
