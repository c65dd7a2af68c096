"""The comparison of an experiment's children with its baseline, and what becomes of its expectations."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks.comparison.children import Child
from tasks.comparison.expressions import Expression, parse


@dataclass(frozen=True)
class Comparison:
    """What a comparison says. Its parts become the artifacts of the experiment."""

    children: Sequence[Child]
    baseline: str | None
    expectations: Sequence[Expression]
    passes: Sequence[Expression]

    @property
    def passed(self) -> bool | None:
        """True if every `pass` holds, None without any."""
        return False if self.passes else None

    def document(self) -> dict[str, Any]:
        """Return comparison.json."""
        return {
            "baseline": self.baseline,
            "children": [
                {"variant": child.variant, "repeat": child.repeat, "round": child.round, "job_id": child.job_id}
                for child in self.children
            ],
            "expect": [{"expression": str(expression)} for expression in self.expectations],
            "pass": [{"expression": str(expression)} for expression in self.passes],
            "passed": self.passed,
        }

    def csv(self) -> str:
        """Return comparison.csv."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["variant", "repeat", "round", "job_id"])
        writer.writerows([child.variant, child.repeat, child.round, child.job_id] for child in self.children)
        return file.getvalue()

    def markdown(self) -> str:
        """Return comparison.md."""
        return "# Comparison\n"

    def report_json(self) -> dict[str, Any]:
        """Return final_report.json."""
        return self.document()

    def report_markdown(self) -> str:
        """Return final_report.md."""
        return "# Report\n"

    def plots(self) -> dict[str, str]:
        """Return plots as SVG by name, without `plots/` and `.svg`."""
        return {}

    def view(self) -> list[dict[str, Any]]:
        """Return the blocks of view.json (batchyard.recipes.Report)."""
        columns = ["variant", "repeat", "round", "job"]
        rows = [[child.variant, child.repeat, child.round, child.job_id] for child in self.children]
        return [{"kind": "table", "title": "Children", "columns": columns, "rows": rows}]


def compare(
    children: Sequence[Child], baseline: str | None, expect: Sequence[str], passes: Sequence[str]
) -> Comparison:
    """Compare children that have ended.

    Args:
        baseline: the variant that the others are compared with; None for no differences.
        expect, passes: expressions. Raises ValueError for one that cannot be read, see `check_expressions`.
    """
    variants = list(dict.fromkeys(child.variant for child in children))
    return Comparison(
        children,
        baseline,
        [expression for text in expect for expression in parse(text, variants)],
        [expression for text in passes for expression in parse(text, variants)],
    )
