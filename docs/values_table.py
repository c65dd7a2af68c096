"""Print the table of the chart's values in docs/deploy.md: python docs/values_table.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

VALUES = Path(__file__).parents[1] / "deploy/helm/values.yaml"


def table() -> str:
    """Every value with its default and meaning, the comment above it in values.yaml, as Markdown."""
    text = VALUES.read_text()
    defaults, path, rows = yaml.safe_load(text), list[str](), ["| value | default | |", "|---|---|---|"]
    comment = ""
    for line in text.splitlines():
        if remark := re.match(r"( *)# (.*)", line):
            comment = remark[2]
        elif key := re.match(r"( *)(\w+):", line):
            path = [*path[: len(key[1]) // 2], key[2]]
            if comment:
                rows.append(f"| `{'.'.join(path)}` | {_default(defaults, path)} | {comment} |")
            comment = ""
        else:
            comment = ""
    return "\n".join(rows)


def _default(defaults: Any, path: list[str]) -> str:
    value = defaults
    for name in path:
        value = value[name]
    if value == "" or isinstance(value, dict | list):
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


if __name__ == "__main__":
    print(table())
