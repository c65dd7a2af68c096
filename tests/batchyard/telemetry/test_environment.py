"""OpenTelemetry's own variables say whether spans are sent, as its specification has them."""

from __future__ import annotations

import pytest

from batchyard.telemetry import environment

ADDRESS = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "ours"}, False),
        (ADDRESS, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({**ADDRESS, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**ADDRESS, "OTEL_SDK_DISABLED": "TRUE"}, False),
    ],
)
def test_an_address_or_an_exporter_turns_traces_on(environ: dict[str, str], wanted: bool) -> None:
    assert environment.wanted(environ) is wanted
    assert environment.problem(environ) is None


@pytest.mark.parametrize(
    ("environ", "remedy"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER is 'zipkin'; set it to otlp or none"),
        (
            {**ADDRESS, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "the OTLP protocol is 'grpc'; set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf",
        ),
    ],
)
def test_what_cannot_be_sent_is_said_with_its_remedy(environ: dict[str, str], remedy: str) -> None:
    assert environment.problem(environ) == f"no traces are sent: {remedy}"


def test_a_missing_extra_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("batchyard.plugins.find_spec", absent)
    assert environment.problem(ADDRESS) == (
        "no traces are sent: OTEL_* needs the OpenTelemetry SDK, which is not installed here: "
        "pip install 'batchyard[otel]'"
    )
