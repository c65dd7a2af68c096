"""The report of a campaign, in Markdown."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tests.chaos.audit import Audit
from tests.chaos.deployment import versions
from tests.chaos.faults import Fault, Injector, kinds
from tests.chaos.monitor import Monitor
from tests.chaos.workload import Workload


@dataclass
class Result:
    """All that a campaign has shown."""

    minutes: float
    seed: int
    injector: Injector
    workload: Workload
    monitor: Monitor
    audit: Audit
    settled_seconds: float

    @property
    def in_flight(self) -> int:
        """Requests in flight at the faults, added up."""
        return sum(self.monitor.most_in_flight(fault) for fault in self.injector.faults)

    @property
    def never_recovered(self) -> list[Fault]:
        return [fault for fault in self.injector.faults if self.monitor.recovery(fault) is None]

    @property
    def problems(self) -> list[str]:
        """Say what is not as it must be; empty after a campaign that nothing has come of."""
        audit = self.audit
        problems = [*audit.wrong, *self.workload.unclear, *self.injector.errors]
        for what in ("lost", "doubled", "not_ended", "invented"):
            if number := getattr(audit, what):
                problems.append(f"{number} {what.replace('_', ' ')}")
        if audit.redone > self.in_flight:
            problems.append(f"{audit.redone} requests were redone, {self.in_flight} in flight at the faults")
        return problems

    def markdown(self) -> str:
        audit, faults = self.audit, self.injector.faults
        parts = [
            f"# A campaign of {len(faults)} faults in {self.minutes:g} minutes, seed {self.seed}",
            "Versions: " + ", ".join(f"{name} {version}" for name, version in versions().items()) + ".",
            f"{len(faults)} faults of {len({fault.kind for fault in faults})} kinds; {self.injector.skipped} more met "
            f"nothing to hit. The last batch or job ended {self.settled_seconds:.0f} s after the last fault.",
            table(
                ["fault", "times", "recovered within, s (median)", "(longest)", "most in flight"],
                (self._kind(kind) for kind in kinds() if any(fault.kind == kind for fault in faults)),
            ),
            table(["batches", "number"], [*((status, number) for status, number in sorted(audit.ends.items()))]),
            table(["jobs", "number"], sorted(audit.jobs.items())),
            table(["items of jobs", "number"], sorted(audit.items.items())),
            table(
                ["lines", "number"],
                [
                    ("of all inputs", audit.lines),
                    ("lost", audit.lost),
                    ("doubled", audit.doubled),
                    ("batches and jobs not ended", audit.not_ended),
                    ("answered by the simulated engines", audit.answered),
                    ("run, by the engines' own log", audit.calls),
                    ("redone, in completed batches", audit.redone),
                    ("run in vain, in batches that were cancelled or expired", audit.abandoned),
                    ("answers without a run", audit.invented),
                    ("in flight at the faults, added up", self.in_flight),
                ],
            ),
            table(
                ["error lines: batch", "code", "number"],
                ((status, code, number) for (status, code), number in sorted(audit.codes.items())),
            ),
            table(
                ["what clients met: call", "answer", "times"],
                ((*key, number) for key, number in sorted(self.workload.failures.items())),
            ),
        ]
        if self.problems:
            counted = Counter(problem[:300] for problem in self.problems)
            lines = "\n".join(f"- {problem}{f' ({n} times)' if n > 1 else ''}" for problem, n in counted.items())
            parts.append("## Not as it must be\n\n" + lines)
        return "\n\n".join(parts) + "\n"

    def _kind(self, kind: str) -> tuple[object, ...]:
        faults = [fault for fault in self.injector.faults if fault.kind == kind]
        seconds = [seconds for fault in faults if (seconds := self.monitor.recovery(fault)) is not None]
        in_flight = max(self.monitor.most_in_flight(fault) for fault in faults)
        times = (f"{statistics.median(seconds):.0f}", f"{max(seconds):.0f}") if seconds else ("never", "never")
        return kind, len(faults), *times, in_flight


def table(heads: list[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
