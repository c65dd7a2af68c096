"""Reports of a tune say what ran and why a cell is recommended; every cell that they name exists."""

from __future__ import annotations

import csv
import io
import json
from typing import Any
from xml.etree import ElementTree

from batchyard.recipes import blocks
from recipes.tune import plots, report
from tests.recipes.tune.made import MINI, NANO, failed, options, repeat, result, the_cells
from webapp.pages.charts.view import charts_of

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB."


def test_a_document_is_json_and_has_every_cell_with_its_entry(document: dict[str, Any]) -> None:
    assert json.loads(json.dumps(document)) == document
    assert document["counts"] == {
        "cells": 5, "completed": 3, "failed": 1, "over_budget": 0, "not_run": 1, "meet_slo": 3,
    }  # fmt: skip
    assert document["recommendation"]["cell"] == "mini-16x1"
    assert document["pareto"] == ["mini-8x1", "mini-16x1"]
    assert document["cells"][0]["entry"]["engine_args"]["max_num_seqs"] == 8


def test_the_summary_has_a_row_for_each_cell_with_all_digits(document: dict[str, Any]) -> None:
    rows = list(csv.DictReader(io.StringIO(report.csv_of(document))))
    assert [row["cell"] for row in rows] == ["mini-8x1", "mini-8x2", "mini-16x1", "mini-16x2", "mini-16x2-repair"]
    assert [row["tokens_per_second"] for row in rows] == ["100.0", "150.0", "200.0", "", ""]
    assert (rows[1]["errors"], rows[3]["category"], rows[4]["repair_of"]) == ("0.01", "memory", "mini-16x2")
    assert rows[0]["overrides"] == "engine_args.max_num_seqs = 8"


def test_the_report_has_the_recommendation_its_reasons_and_the_failures(document: dict[str, Any]) -> None:
    text = report.markdown(document)
    assert "* mini-16x1 has the most tokens/s, 200, of 3 that meet the SLO (p95 <= 5 s)." in text
    assert "(mini-8x1, mini-8x2, mini-16x1)" in text
    assert "[models.mini.engine_args]\nmax_model_len = 512\nmax_num_seqs = 16" in text
    assert "| mini-16x2 | memory | error |" in text and "run 8 requests at once in place of 16" in text
    assert "| mini-8x2 | request_timeout | 10 |" in text
    assert "| mini-8x1 | 2.5 | 3072 | - |" in text


def test_a_cell_that_ran_with_other_values_is_shown() -> None:
    [cell] = the_cells(MINI, batch=[8])
    text = report.markdown(
        report.document(options(), [MINI], [result(cell, overrides={"engine_args.max_num_seqs": 9})])
    )
    assert "| mini-8x1 | engine_args.max_num_seqs | 8 | 9 |" in text


def test_metrics_are_those_of_the_recommended_cell(document: dict[str, Any]) -> None:
    metrics = report.metrics(document)
    assert (metrics["recommended"], metrics["recommended/tokens"], metrics["cells"]) == ("mini-16x1", 200, 5)


def test_the_page_draws_every_block(document: dict[str, Any]) -> None:
    drawn = charts_of(blocks.as_json(report.view(document)))
    assert not any(chart.problem for chart in drawn)
    assert [chart.title for chart in drawn] == [
        "Recommendation",
        "Entry of models.toml",
        "Cells",
        "Tokens/s by cell",
        "Tokens/s over p95: cells that no other beats in both",
        "Tokens/s by batch and concurrency",
        "Starts and memory",
        "Cells that failed",
        "Requests that failed",
    ]


def test_the_heat_map_has_the_two_dimensions_in_order() -> None:
    values = {"batch": [16, 8], "set": {"replicas": [2, 1]}}
    results = [
        result(cell, repeat(10 * (cell.batch or 0) + cell.overrides["replicas"])) for cell in the_cells(MINI, **values)
    ]
    heat = report.heat_map(report.document(options(**values), [MINI], results))
    assert heat is not None
    assert (heat.rows, heat.columns) == (["batch 8", "batch 16"], ["replicas 1", "replicas 2"])
    assert heat.values == [[81, 82], [161, 162]]


def test_a_heat_map_needs_two_dimensions() -> None:
    results = [result(cell) for cell in the_cells(MINI, batch=[8, 16])]
    assert report.heat_map(report.document(options(), [MINI], results)) is None
    both = [result(cell) for cell in the_cells(NANO, MINI, batch=[8, 16])]
    heat = report.heat_map(report.document(options(models=["nano", "mini"]), [NANO, MINI], both))
    assert heat is not None and heat.columns == ["model nano", "model mini"]


def test_a_tune_that_measured_nothing_has_a_report() -> None:
    [cell] = the_cells(MINI)
    document = report.document(options(), [MINI], [failed(cell, "it ended")])
    assert "No cell was measured" in report.markdown(document)
    assert plots.of(document) == {}
    assert not any(chart.problem for chart in charts_of(blocks.as_json(report.view(document))))
    assert report.metrics(document)["recommended"] is None


def test_hostile_texts_stand_in_reports_as_text() -> None:
    hostile = "<script>|`x`\n# y"
    [cell] = the_cells(MINI, set={"engine_args.dtype": [hostile]})
    [plain] = the_cells(MINI)
    document = report.document(options(), [MINI], [failed(cell, hostile), result(plain)])
    assert "<script>" not in report.markdown(document)
    assert all(ElementTree.fromstring(svg) is not None for svg in plots.of(document).values())
