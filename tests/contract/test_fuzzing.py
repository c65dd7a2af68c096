"""The HTTP surface, fuzzed from our own OpenAPI document: no 5xx, and no answer that is not in the document."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import httpx
import pytest
import schemathesis
from flask import Flask
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.generation.meta import TestPhase
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from webapp.application import MODULES
from webapp.document import document


def _document() -> dict[str, Any]:
    app = Flask("document")
    for module in MODULES:
        app.register_blueprint(module.routes)
    with app.app_context():
        return document()


@schemathesis.serializer("application/jsonl")
def _lines(_context: Any, value: Any) -> bytes:
    """Send a generated value as the one line of a body."""
    return value if isinstance(value, bytes) else json.dumps(value).encode()


# Unknown query parameters are ignored, as OpenAI does.
_config = SchemathesisConfig.from_dict({"generation": {"allow-extra-parameters": False}, "request-timeout": 120})
surface = schemathesis.openapi.from_dict(_document(), config=_config)
_covering: Counter[str] = Counter()
WHOLE, EACH = 40, 10
"""Of the cases that cover a schema the first 40 are asked, and then one of ten: an operation has a thousand."""


def _check(case: Any, http: httpx.Client) -> None:
    case.call_and_validate(
        base_url=str(http.base_url),
        headers={"Authorization": http.headers["Authorization"]},
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
            negative_data_rejection,
            unsupported_method,
            ignored_auth,
        ],
    )


@surface.parametrize()
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_answer_is_outside_the_document(case: Any, http: httpx.Client) -> None:
    if case.meta.phase.name == TestPhase.COVERAGE:
        _covering[case.operation.label] += 1
        if (number := _covering[case.operation.label]) > WHOLE and number % EACH:
            return
    _check(case, http)


@pytest.mark.exhaustive  # all cases, and many random ones
@surface.parametrize()
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_answer_of_many_more_is_outside_the_document(case: Any, http: httpx.Client) -> None:
    _check(case, http)
