"""The values of the Helm chart: what is refused, the schema, the notes and the page of deployments."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import helm_python
import pytest
import yaml

import batchyard
from batchyard.cli import main
from tests.support import charts
from tests.support.charts import EXTERNAL, FOLDER, MINIMAL, NAME, the, the_pod
from tests.support.stacks import ROOT


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "existingSecret is required"),
        ({"existingSecret": "ours"}, "models is required"),
        ({**EXTERNAL, "ray": {"address": "ray:6379"}}, "ray.from is required with ray.address"),
        ({**MINIMAL, "servces": {}}, "servces"),
        ({**MINIMAL, "services": {"web": {"replicas": "2"}}}, "/services/web/replicas"),
        ({**MINIMAL, "services": {"web": {"replica": 2}}}, "replica"),
        ({**MINIMAL, "ray": {"address": "ray://head:10001"}}, "/ray/address"),
        ({**MINIMAL, "redis": {"url": "redis.example.com"}}, "/redis/url"),
        ({**MINIMAL, "postgresql": {"url": "postgres://db/batchyard"}}, "/postgresql/url"),
        ({**MINIMAL, "artifacts": {"url": "bucket/batchyard"}}, "/artifacts/url"),
        ({**MINIMAL, "ray": {"groups": [{"name": "gpu"}]}}, "missing properties"),
        ({**MINIMAL, "ray": {"groups": [{**charts.SCALED_GROUP, "name": "head"}]}}, "/ray/groups/0/name"),
        ({**MINIMAL, "pod": {"hostNetwork": True}}, "hostNetwork"),
        ({**MINIMAL, "image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
    ],
)
def test_values_that_are_missing_or_wrong_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(helm_python.HelmError, match=re.escape(message)):
        charts.render(values)


def test_every_value_is_in_the_schema_and_every_one_of_the_schema_has_a_default() -> None:
    with helm_python.Chart.load(FOLDER) as chart:
        schema, defaults = chart.schema, chart.values
    assert schema is not None

    def properties(node: dict[str, Any]) -> dict[str, Any]:
        resolve: Callable[[Any], Any] = lambda part: schema["$defs"][part["$ref"].rpartition("/")[2]]  # noqa: E731
        parts = [resolve(part) if "$ref" in part else part for part in [node, *node.get("allOf", [])]]
        return {name: found for part in parts for name, found in part.get("properties", {}).items()}

    def compare(node: dict[str, Any], values: dict[str, Any], place: str) -> None:
        assert properties(node).keys() - {"global"} == values.keys(), place
        for name, value in values.items():
            if isinstance(value, dict) and properties(properties(node)[name]) and name not in ("pod", "resources"):
                compare(properties(node)[name], value, f"{place}.{name}")

    compare(schema, defaults, "")


def test_the_notes_say_how_the_first_key_is_made() -> None:
    notes = charts.texts(MINIMAL)["NOTES.txt"]
    (line,) = re.findall(r"exec deployment/(\S+) -- batchyard (key create .*)", notes)
    assert the(charts.render(MINIMAL), "Deployment", line[0].removeprefix(f"{NAME}-"))
    command: Any = main.cli
    words = line[1].split()
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("create", words)


def test_the_values_of_the_page_of_deployments_are_taken() -> None:
    page = (ROOT / "docs/deploy.md").read_text()
    (line,) = re.findall(r"^helm install (\w+) deploy/helm (.*)$", page, re.MULTILINE)
    (words,) = re.findall(r"--set (\S+) --set-file models=models.toml", line[1])
    objects = charts.render({**helm_python.parse_set_string(words), "models": (ROOT / "models.toml").read_text()})
    assert the_pod(objects, "web").main["image"] == f"registry.example.com/batchyard:{batchyard.__version__}"
    (block,) = (text for text in re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.M) if "existingSecret" in text)
    documented = charts.render({**yaml.safe_load(block), "models": MINIMAL["models"]})
    assert [found["kind"] for found in charts.of_kind(documented, "StatefulSet", "ScaledObject")] == ["ScaledObject"]


def test_the_page_of_deployments_has_the_table_of_values() -> None:
    printed = subprocess.run(
        [sys.executable, ROOT / "docs/values_table.py"], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() in (ROOT / "docs/deploy.md").read_text()
