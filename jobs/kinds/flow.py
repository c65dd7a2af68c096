"""The kind of recipes whose items are rows of an input, each answered by a program."""

from typing import Any

from batchyard.errors import RequestError
from batchyard.recipes import FlowRecipe
from jobs.catalogue import catalogue_of
from jobs.intake import options as job_options
from jobs.intake.drafts import Configuration, Submission
from jobs.kinds import flow_estimate, item_checks
from jobs.kinds.kind import RecipeKind
from jobs.running import tick
from jobs.running.memory import LiveJobs
from store.leases import Lease
from store.records import Job
from tasks.context import AppContext


class FlowKind(RecipeKind[FlowRecipe[Any]]):
    has_journal = True
    estimate = staticmethod(flow_estimate.estimate)
    write_items = staticmethod(item_checks.write)

    def __init__(self) -> None:
        self.jobs = LiveJobs()

    def check(self, context: AppContext, recipe: FlowRecipe[Any], sent: Submission) -> Configuration:
        options = job_options.parse(context, recipe, sent.values)
        stages = job_options.stages(context, recipe, options)
        models = job_options.models(context, catalogue_of(context), recipe, options, stages)
        expected = job_options.expected(context, recipe, options, stages)
        named = {f"options.{name}": (job_id, recipe.name) for name, job_id in options.named_jobs().items()}
        return Configuration(recipe, options, models, stages, expected, named)

    def tick(self, context: AppContext, lease: Lease, job: Job) -> None:
        tick.run(context, lease, job, self.jobs)

    def expected(self, context: AppContext, job: Job) -> dict[int, int | None]:
        try:
            recipe: Any = catalogue_of(context).recipe(job.recipe)
            options = job_options.parse(context, recipe, job.options)
            stages = job_options.stages(context, recipe, options)
            by_stage = job_options.expected(context, recipe, options, stages)
        except RequestError:  # of another version of the recipe, or of one that is gone
            return {}
        return {number: None if each is None else round(each * job.total) for number, each in enumerate(by_stage)}


FLOW = FlowKind()
