"""The requests of a job's items that have no answer yet: in a buffer, or out in a segment."""

from __future__ import annotations

from collections import Counter, defaultdict, deque

from jobs.intake.requests import PreparedRequest


class OpenRequests:
    """The requests of one job without an answer.

    Attributes:
        buffers: requests that stand in no segment yet, by stage and model.
        out: position and index of each request that is in a segment, by stage and line.
        unanswered, answered: number of requests out, and of answers taken, by model.
    """

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, str], deque[PreparedRequest]] = defaultdict(deque)
        self.out: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        self.unanswered: dict[str, int] = defaultdict(int)
        self.answered: dict[str, int] = defaultdict(int)

    def add(self, request: PreparedRequest) -> None:
        """Put a request into its buffer."""
        self.buffers[request.stage, request.model].append(request)

    def issue(self, requests: list[PreparedRequest], first_line: int) -> None:
        """Note that these requests stand in a segment, with lines from `first_line` on."""
        for line, request in enumerate(requests, first_line):
            self.note_out(request.stage, line, request.position, request.sample, request.model)

    def note_out(self, stage: str, line: int, position: int, index: int, model: str) -> None:
        """Note that a request is out: of which item, and which of its turn's wants."""
        self.out[stage][line] = (position, index)
        self.unanswered[model] += 1

    def take(self, stage: str, line: int) -> tuple[int, int] | None:
        """Return position and index of a request that is answered now, None if it is not out."""
        return self.out[stage].pop(line, None)

    def note_answer(self, model: str) -> None:
        """Count an answer."""
        self.unanswered[model] -= 1
        self.answered[model] += 1

    def pending(self) -> Counter[str]:
        """Return the number of requests that stand in no segment yet, by model."""
        pending: Counter[str] = Counter()
        for (_, model), buffer in self.buffers.items():
            pending[model] += len(buffer)
        return pending

    def total(self) -> int:
        """Return the number of all requests, out or buffered."""
        return sum(self.unanswered.values()) + self.pending().total()
