"""The table in docs/endpoints.md is that of the entries and of what the engines say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from batchyard.endpoints.catalog import ENDPOINTS
from inference.engines import registry

DOCUMENT = Path(__file__).parents[3] / "docs/endpoints.md"


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def test_the_table_has_a_row_of_each_endpoint() -> None:
    built_in = sorted(name for name in registry.BUILT_IN)
    engines = [registry.capabilities(name) for name in built_in]
    expected = [
        f"| `{entry.path}` | {code(entry.aliases)} | {code(entry.content)} | {entry.result} | "
        f"{code(engine.name for engine in engines if entry.path in engine.serves)} |"
        for entry in ENDPOINTS.values()
    ]
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `/")]
    assert rows == expected


def test_parameters_without_effect_are_those_of_the_entries() -> None:
    rows = [line.split(" | ") for line in DOCUMENT.read_text().splitlines() if " | no effect" in line]
    told = {name: of for names, of, _ in rows for name in re.findall("`(.+?)`", names)}
    everywhere = frozenset.intersection(*(entry.without_effect for entry in ENDPOINTS.values()))
    others = {name: code([path]) for path, entry in ENDPOINTS.items() for name in entry.without_effect - everywhere}
    assert told == dict.fromkeys(everywhere, "all") | others
