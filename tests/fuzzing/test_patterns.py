"""A long text of a stranger takes time by its length, whatever it is made of: patterns do not try again and again."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import pytest

from batchyard.tables.spreadsheets import harmless
from batchyard.tables.template import Template, TemplateError
from inference.requests import media
from recipes.rewards import graders
from recipes.rewards.choices import chosen
from recipes.rewards.comparing import fields_of
from recipes.tune.slo import parse


def graded_by(template: str) -> object:
    grader = {"type": "string_check", "input": template, "reference": "x", "operation": "eq"}
    return graders.reward(json.dumps(grader))


LENGTH = 200_000
"""Of a pattern whose time grows with the square of this, the test would not see the end."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("read", "begin", "repeated", "end"),
    [
        (harmless, "-", "1", "x"),
        (harmless, "", " ", "=x"),
        (chosen, "", "(", ""),
        (chosen, "", "*", ""),
        (chosen, "answer ", "(", ""),
        (chosen, "", "a)", ""),
        (fields_of, "```", "\n", ""),
        (fields_of, "```json", " \n", "x"),
        (parse, "p95<=", " ", "x"),
        (parse, "p95", " ", "x"),
        (graded_by, "{{", " ", ""),
        (graded_by, "{{", " ", "x"),
        (lambda text: list(media.remote({"messages": [{"role": "user", "x": text}]})), "", " ", ""),
        (Template, "", "{a}", ""),
    ],
)
def test_the_time_grows_with_the_length(read: Callable[[str], object], begin: str, repeated: str, end: str) -> None:
    with suppress(ValueError, TemplateError):
        read(begin + repeated * LENGTH + end)
