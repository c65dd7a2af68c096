"""The kind of recipes whose items are rows of an input, each answered by a program."""

from collections.abc import Mapping
from typing import Any

from batchyard.errors import RequestError
from batchyard.recipes import FlowRecipe
from jobs.catalogue import catalogue_of
from jobs.intake import options as job_options
from jobs.intake.drafts import Configuration, JobDraft
from jobs.kinds import flow_estimate, item_checks
from jobs.kinds.kind import JobEstimate, RecipeKind
from jobs.running import tick
from jobs.running.memory import LiveJobs
from store.leases import Lease
from store.records import Job
from tasks.context import AppContext
from tasks.intake.validation import ValidationReport


class FlowKind(RecipeKind[FlowRecipe[Any]]):
    name = "flow"
    has_journal = True

    def __init__(self) -> None:
        self.jobs = LiveJobs()

    def check(
        self,
        context: AppContext,
        recipe: FlowRecipe[Any],
        values: Mapping[str, Any],
        completion_window: str,
        *,
        admin: bool = False,
    ) -> Configuration:
        options = job_options.parse(context, recipe, values)
        stages = job_options.stages(context, recipe, options)
        models = job_options.models(context, catalogue_of(context), recipe, options, stages)
        expected = job_options.expected(context, recipe, options, stages)
        named = {f"options.{name}": (job_id, recipe.name) for name, job_id in options.named_jobs().items()}
        return Configuration(recipe, options, models, stages, expected, named)

    def estimate(self, context: AppContext, recipe: FlowRecipe[Any], draft: JobDraft) -> JobEstimate:
        return flow_estimate.estimate(context, recipe, draft)

    def write_items(
        self, context: AppContext, recipe: FlowRecipe[Any], job: Job, report: ValidationReport
    ) -> tuple[str, int]:
        return item_checks.write(context, recipe, job, report)

    def tick(self, context: AppContext, lease: Lease, job: Job) -> None:
        tick.run(context, lease, job, self.jobs)

    def expected(self, context: AppContext, recipe: FlowRecipe[Any], job: Job) -> dict[int, int | None]:
        try:
            options = job_options.parse(context, recipe, job.options)
            stages = job_options.stages(context, recipe, options)
            by_stage = job_options.expected(context, recipe, options, stages)
        except RequestError:  # of another version of the recipe
            return {}
        return {number: None if each is None else round(each * job.total) for number, each in enumerate(by_stage)}


FLOW = FlowKind()
