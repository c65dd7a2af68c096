"""The interface of a post-processing step: its options, and results to artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from batchyard.settings import Settings
    from store.artifacts import ArtifactWriter
    from store.formats.results import ResultRow
    from store.intake.outputs import Destination


class StepOptions(BaseModel):
    """One entry of a batch's `post_process`. Each step adds fields of its own."""

    model_config = ConfigDict(extra="forbid")
    step: str


class EarlierBatch(NamedTuple):
    """Its requests in input order, of which `answered` have an answer. `changes`: what is not as it was then."""

    rows: Iterator[ResultRow]
    answered: int
    changes: list[str]


class Results(Protocol):
    """A batch's results as a step sees them, and the way to its artifacts."""

    def rows(self) -> Iterator[ResultRow]:
        """Stream every request in input order, with its answer or error."""

    def create(self) -> ArtifactWriter:
        """Return a writer for a new artifact."""

    def output(self, url: str, columns: Mapping[str, str]) -> Destination:
        """Return the folder or table at a URL that the operator allows (store.intake.outputs)."""

    def add(self, name: str, sha256: str, size: int, lines: int | None = None) -> None:
        """Add the content that a writer has stored to the batch's artifacts, under this name."""

    def earlier(self, batch_id: str) -> EarlierBatch:
        """Return another batch of the project, which has ended, to the same endpoint. Raises RequestError."""


Options = TypeVar("Options", bound=StepOptions)
Checked = TypeVar("Checked", bound=StepOptions, contravariant=True)


class RequestCheck(Protocol[Checked]):
    def __call__(self, body: Mapping[str, Any], options: Checked) -> tuple[str, str] | None:
        """Return param and reason if the step cannot use a request with this body; None if it can."""


@dataclass(frozen=True)
class Step(Generic[Options]):
    """A post-processing step."""

    name: str  # as `step` in `post_process` and as its entry point
    summary: str  # one sentence for the form of a new batch
    options: type[Options]  # a subclass of StepOptions
    # Writes the artifacts; the same rows must give the same bytes. Whatever it raises fails the step alone. It may
    # return a summary, a small JSON object that is shown with the step.
    run: Callable[[Results, Options], Mapping[str, Any] | None]
    # Called for every request in validation; a request that it refuses is an error of its line
    check: RequestCheck[Options] | None = None
    # Called with the deployment's settings and the project's id before a batch is created; it raises
    # PermissionDeniedError for options that the operator does not allow
    permit: Callable[[Settings, str, Any], None] | None = None
