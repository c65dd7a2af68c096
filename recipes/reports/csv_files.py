"""Artifacts of CSV, with all digits."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence


def text_of(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a file with a line of names and a line for each row."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return file.getvalue()
