"""The port of the web app: what its pages and routes ask of jobs. The package `jobs` implements it."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from flask import Blueprint

from batchyard.errors import RequestError
from batchyard.recipes import Recipe
from store.records import Job
from tasks.intake.submission import NewInput
from tasks.port import implementation
from webapp.wire.jobs import JobObject
from webapp.wire.start import Start, Started


class WebPort:
    """A web app without jobs."""

    routes: Sequence[Blueprint] = ()
    pages: Sequence[Blueprint] = ()

    def recipes(self) -> Sequence[Recipe[Any]]:
        """Return the recipes that the deployment offers."""
        return []

    def to_wire(self, records: Sequence[Job]) -> list[JobObject]:
        """Return jobs as they cross the wire, in their order."""
        return []

    def start(self, options: Start, source: NewInput | Sequence[Mapping[str, Any]]) -> Started:
        """Create the job of a POST /start from stored content or from rows. Raises RequestError."""
        raise RequestError("This deployment runs no jobs.", code="invalid_value", param="recipe")

    def retry(self, job_id: str) -> None:
        """Make a job of the items that did not complete in another. Raises RequestError, NotFoundError."""


@functools.cache
def port() -> WebPort:
    return implementation("web.port", WebPort)
