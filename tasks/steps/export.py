"""Step `export`: write the results as files or rows to a URL that the client names."""

from __future__ import annotations

import csv
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from batchyard import json_lines
from batchyard.settings import Settings
from batchyard.tables.spreadsheets import harmless
from results.table import SCHEMA, record
from store.formats.results import ResultRow
from store.intake import tables
from store.intake.buckets import check_url
from tasks.steps.parquet import write as write_parquet
from tasks.steps.step import Results, Step, StepOptions

SUCCESS = "_SUCCESS"
"""The file that is written last; it lists all parts."""
COLUMNS = {field.name: str(field.type) for field in SCHEMA} | dict.fromkeys(
    ("tool_calls", "metadata", "response"), "json"
)
"""The types of a table's columns: those of the files, and the whole response."""
_Writer = Callable[[Iterator[ResultRow], Path], int]


class ExportOptions(StepOptions):
    """The destination of the results, and their format."""

    step: Literal["export"]
    url: str = Field(
        min_length=1,
        max_length=1024,
        description="folder, such as s3://bucket/out/{name}/{date}/; also {id}, or table://DATABASE/SCHEMA/TABLE",
        examples=["s3://bucket/out/{name}/"],
    )
    format: Literal["parquet", "jsonl", "csv"] = Field("parquet", description="format of the files")
    partition: int = Field(50_000, ge=1, le=1_000_000, description="maximum rows of a file or transaction")


def permit(settings: Settings, project_id: str, options: ExportOptions) -> None:
    """Raise PermissionDeniedError for a URL that the operator does not allow."""
    check_url(
        options.url, settings.output_prefix_list, project_id, "BATCHYARD_OUTPUT_PREFIXES", "post_process", "written"
    )
    if tables.is_table(options.url):
        tables.names_of(options.url, settings.output_database_urls)


def export(results: Results, options: ExportOptions) -> Mapping[str, Any]:
    """Write files `part-00000` and so on, and `_SUCCESS`; or rows of a table. Raises UnavailableError."""
    output = results.output(options.url, COLUMNS)
    is_table = tables.is_table(options.url)
    write: _Writer = partial(_write_jsonl, with_response=True) if is_table else _WRITERS[options.format]
    rows, names, total = results.rows(), [], 0
    with tempfile.TemporaryDirectory(prefix="batchyard-export-") as temporary:
        for number in itertools.count():
            part = Path(temporary) / f"part-{number:05d}.{options.format}"
            written = write(itertools.islice(rows, options.partition), part)
            if not written and number:
                break
            output.put(part, part.name)
            part.unlink()
            names.append(part.name)
            total += written
        if not is_table:
            success = Path(temporary) / SUCCESS
            success.write_text(json.dumps({"files": names, "rows": total}) + "\n")
            output.put(success, SUCCESS)
    return {"url": output.url, "rows": total} | ({} if is_table else {"files": len(names)})


def _write_jsonl(rows: Iterator[ResultRow], file: Path, *, with_response: bool = False) -> int:
    lines = 0
    with file.open("wb") as stream:
        for lines, row in enumerate(rows, 1):  # noqa: B007
            stream.write(json_lines.line(record(row) | ({"response": row.response} if with_response else {})))
    return lines


def _write_csv(rows: Iterator[ResultRow], file: Path) -> int:
    lines = 0
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(SCHEMA.names)
        for lines, row in enumerate(rows, 1):  # noqa: B007
            values = (json.dumps(value) if isinstance(value, list) else value for value in record(row).values())
            writer.writerow(map(harmless, values))
    return lines


_WRITERS: Mapping[str, _Writer] = {"parquet": write_parquet, "jsonl": _write_jsonl, "csv": _write_csv}

STEP = Step(
    "export",
    "the results as files in a folder of a bucket, or as rows of a table.",
    ExportOptions,
    export,
    permit=permit,
)
