"""The kind of recipe `tune`: its cells run one after another.

A cell's jobs are one job to warm up, and then, for each repeat, so many equal ones side by side. Each repeat begins
when the one before has ended, and each cell when the engines of the one before are stopped. All that a tick knows
stands in the records, so a tick after a crash decides the same.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from batchyard import durations, json_lines
from batchyard.errors import ConfigurationError, PermissionDeniedError, RequestError
from batchyard.models import ModelSpec, served_by_name
from batchyard.statuses import TERMINAL
from jobs import messages
from jobs.catalogue import catalogue_of
from jobs.intake import options as job_options
from jobs.intake.drafts import Configuration, JobDraft, Submission
from jobs.kinds import nested
from jobs.kinds.composite import UNKNOWN_END
from jobs.kinds.kind import ChildRow, JobEstimate, RecipeKind
from jobs.kinds.nested import ChildInput
from jobs.tune import derived, measuring
from jobs.tune.measuring import Wave
from recipes.tune import recipe as tune
from recipes.tune.cells import Cell, Tune
from recipes.tune.recipe import TuneRecipe
from recipes.tune.results import CellResult, State
from recipes.tune.search import next_cell
from store.formats import items as items_file
from store.jobs import composites
from store.leases import Lease
from store.records import Job
from tasks.changing_models import refuse_risky
from tasks.context import AppContext
from tasks.intake.validation import ValidationReport

STOP_SECONDS = 60.0
"""The next cell begins after so long, even if nobody has said that the engines of the one before are gone."""
CHECK_SECONDS = 1.0
"""Between two checks whether they are."""
LEAST_SECONDS = 2
"""Less time of its budget is not enough to begin a job."""


class TuneKind(RecipeKind[TuneRecipe]):
    def check(self, context: AppContext, recipe: TuneRecipe, sent: Submission) -> Configuration:
        if not sent.admin:
            message = f"Recipe '{recipe.name}' starts and stops engines, so it needs an admin key, and has no schedule."
            raise PermissionDeniedError(message, param="recipe")
        options: Any = job_options.parse(context, recipe, sent.values)
        return Configuration(recipe, options, _check_cells(context, recipe, options, sent.completion_window))

    def estimate(self, context: AppContext, recipe: TuneRecipe, draft: JobDraft) -> JobEstimate:
        cells = _known_cells(recipe, recipe.options.model_validate(draft.job.options), draft.job.models)
        return JobEstimate(len(cells), warnings=UNKNOWN_END, cells=cells)

    def write_items(
        self, context: AppContext, recipe: TuneRecipe, job: Job, report: ValidationReport
    ) -> tuple[str, int]:
        return _write_cells(context, _known_cells(recipe, recipe.options.model_validate(job.options), job.models))

    def tick(self, context: AppContext, lease: Lease, job: Job) -> None:
        options: Any = catalogue_of(context).recipe(job.recipe).options.model_validate(job.options)
        _TuneTick(context, lease, job, options).run()

    def children(self, context: AppContext, job: Job) -> list[ChildRow]:
        with context.database.read() as session:
            jobs = composites.children(session, job.id)
        rows = []
        for key, child in jobs.items():
            variant, repeat, copy = key.rsplit("/", 2)
            place, metrics = (key, variant, int(repeat), int(copy)), child.metrics or {}
            problem = next((error["message"] for error in child.errors or ()), None)
            rows.append(ChildRow(*place, child.status, child.id, False, metrics, problem))
        return rows


def _known_cells(recipe: TuneRecipe, options: Tune, models: Mapping[str, Any]) -> list[Cell]:
    bases = derived.bases(models, options.models)
    chosen: list[Cell] = job_options.called(recipe, "cells", lambda parsed: recipe.function(parsed, bases), options)
    return chosen


def _check_cells(
    context: AppContext, recipe: TuneRecipe, options: Tune, completion_window: str
) -> dict[str, ModelSpec]:
    """Check each cell as a job on its derived model; return the tuned models.

    Raises RequestError; PermissionDeniedError: a cell sets what administrators may not set over HTTP.
    """
    for index, name in enumerate(options.models):
        job_options.check_model(context, name, f"options.models.{index}")
        if name not in context.models:
            base = served_by_name(context.models)[name].name
            message = f"'{name}' is an adapter, which the engine of '{base}' answers; name '{base}'."
            raise RequestError(message, code="invalid_value", param=f"options.models.{index}")
    models = {name: context.models[name] for name in options.models}
    configurations = {name: spec.model_dump(mode="json") for name, spec in models.items()}
    bases = {base.name: base for base in derived.bases(configurations, options.models)}
    for cell in _known_cells(recipe, options, configurations):
        tuned = bases[cell.model]
        try:
            spec = derived.spec_of(cell, tuned)
        except ConfigurationError as error:
            message = f"Cell '{cell.name}': {error.message}"
            raise RequestError(message, code="invalid_value", param="options.set") from None
        if not context.settings.trust_administrators:
            refuse_risky(tuned.name, context.settings.models.parent, cell.entry(tuned), tuned.entry, "options.set")
        values = tune.requests(options, spec.name)
        try:
            nested.check(derived.context_with(context, spec), tune.RECIPE, values, completion_window)
        except RequestError as error:
            place = (error.param or "").replace("options.", "options.options.", 1)
            raise RequestError(f"Cell '{cell.name}': {error.message}", code=error.code, param=place) from None
    return models


def _write_cells(context: AppContext, cells: Sequence[Cell]) -> tuple[str, int]:
    """Write the items file of a tune. Return its SHA-256 and the number of cells."""
    rows = ((number, cell.name, json_lines.dumps(cell.model_dump(mode="json"))) for number, cell in enumerate(cells, 1))
    return items_file.write(context.artifacts, rows)


class _TuneTick(nested.Tick):
    of_cells = True

    def __init__(self, context: AppContext, lease: Lease, job: Job, options: Tune) -> None:
        super().__init__(context, lease, job)
        self.options = options
        self.bases = derived.bases(job.models, options.models)
        self.results = [CellResult.model_validate(end.result["cell"]) for end in self.ends.values()]
        reader = items_file.Reader(context.artifacts, job.items_sha256 or "")
        self.cells = [Cell.model_validate(row.columns) for row in reader.read(0, reader.total)]
        self.started = list(self.jobs.values())
        self.unrecorded = [child for child in self.started if child.variant not in self.ends]

    def run(self) -> None:
        job = self.job
        runs = any(child.status not in TERMINAL for child in self.started)
        if job.status == "cancelling" or job.outcome is not None:
            if not runs:
                for model in {name for child in self.unrecorded for name in child.models}:
                    messages.stop_engine(model)
                self.commit(ending=True)
        elif runs or job.paused_at is not None:
            return  # who ends wakes it
        elif self._over():
            for cell in self.cells:
                if cell.name not in self.ends:
                    self._end(cell, CellResult(cell=cell, state="not_run"))
            self.commit()
        elif self._engines_are_gone():
            following = self._next(self.results)
            if following is not None:  # else the tick that has recorded the last one has ended the job
                self._continue(following)

    def _next(self, results: Sequence[CellResult]) -> Cell | None:
        most = self.context.settings.max_segments
        return next_cell(self.options, self.bases, results, max_concurrency=most)

    def _continue(self, cell: Cell) -> None:
        base = next(base for base in self.bases if base.name == cell.model)
        cell_jobs = [child for child in self.started if child.variant == cell.name]
        began_at = min((child.created_at for child in cell_jobs), default=int(time.time()))
        expires_at = min(self.job.expires_at, began_at + durations.seconds(self.options.cell_budget))
        if self.options.budget is not None:
            expires_at = min(expires_at, self._began_at() + durations.seconds(self.options.budget))
        try:
            spec = derived.spec_of(cell, base)
        except ConfigurationError as error:  # a remedy that the engine refuses
            self._record(cell, CellResult(cell=cell, state="failed", error=error.message))
            return
        waves: list[Wave] = []
        failure: tuple[State, str] | None = None
        for repeat in range(self.options.repeats + 1):
            jobs = [child for child in cell_jobs if str(child.child_key).split("/")[-2] == str(repeat)]
            if not jobs:
                self._start(cell, spec, repeat, waves, expires_at)
                return
            waves.append(Wave.of(self.context, repeat, jobs))
            failure = waves[-1].failure(self.options.cell_budget)
            if failure is not None:
                break
        self._record(cell, measuring.result(self.context, cell, spec, waves, failure))

    def _start(self, cell: Cell, spec: ModelSpec, repeat: int, waves: Sequence[Wave], expires_at: int) -> None:
        if expires_at - time.time() < LEAST_SECONDS:
            error = f"the time of the cell ({self.options.cell_budget}) ended before repeat {repeat}"
            result = CellResult(cell=cell, state="over_budget")
            if waves:
                result = measuring.result(self.context, cell, spec, waves, None)
            self._record(cell, result.model_copy(update={"state": "over_budget", "error": error}))
            return
        job = self.job
        source = ChildInput(job.input_file_id, job.input_sha256, job.input_name)
        derived_context = derived.context_with(self.context, spec)
        drafts = []
        for copy in range(cell.concurrency if repeat else 1):
            child = tune.job(self.options, cell, spec.name, repeat, copy)
            try:
                draft = nested.draft(derived_context, job, child, source)
            except RequestError as error:
                self._record(cell, CellResult(cell=cell, state="failed", error=error.message))
                return
            draft.job.expires_at = expires_at
            drafts.append(draft)
        self.drafts = drafts
        self.commit()

    def _began_at(self) -> int:
        return self.job.in_progress_at or self.job.created_at

    def _over(self) -> bool:
        """True if the time of all cells is over, and none is to be recorded."""
        if self.options.budget is None or self.unrecorded:
            return False
        return time.time() > self._began_at() + durations.seconds(self.options.budget) - LEAST_SECONDS

    def _engines_are_gone(self) -> bool:
        """True if the last cell's engines are stopped; otherwise they are told to stop."""
        model = self.results[-1].derived if self.results else None
        if model is None or self.unrecorded or not measuring.engines(self.context, model):
            return True
        ended_at = max((float(child.finalizing_at or 0) for child in self.started), default=0.0)
        if time.time() - ended_at > STOP_SECONDS:
            return True
        messages.stop_engine(model)
        messages.wake(self.context.redis, self.job.id, CHECK_SECONDS)
        return False

    def _record(self, cell: Cell, result: CellResult) -> None:
        """Record what became of a cell, and which one there is to come if nobody knew of it."""
        known = {other.name for other in self.cells}
        new = [] if cell.name in known else [cell]
        following = self._next([*self.results, result])
        if following is not None and following.name not in {*known, cell.name}:
            new.append(following)
        self.cells += new
        items = _write_cells(self.context, self.cells) if new else None
        self._end(cell, result)
        self.commit(items=items)
        if result.derived is not None:
            messages.stop_engine(result.derived)

    def _end(self, cell: Cell, result: CellResult) -> None:
        position = next(number for number, other in enumerate(self.cells) if other.name == cell.name)
        cell_jobs = [child for child in self.started if child.variant == cell.name]
        base = next(base for base in self.bases if base.name == cell.model)
        value = {
            **{"text": None, "job_id": cell_jobs[0].id if cell_jobs else None, "status": result.state, "taken": False},
            **{"cell": result.model_dump(mode="json"), "base": asdict(base), "run": len(self.ends)},
        }
        message = result.error or "the time of all cells ended before it began"
        error = None if result.state == "completed" else {"code": result.state, "message": message}
        now = time.time()
        started_at = float(cell_jobs[0].created_at) if cell_jobs else now
        self.end(position, cell.name, value, error, started_at, now)


TUNE = TuneKind()
