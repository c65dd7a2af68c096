"""What OpenTelemetry's own environment variables say: whether spans are wanted, and why none can be sent."""

from collections.abc import Mapping

from batchyard import plugins
from batchyard.errors import ConfigurationError

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EXPORTER = "OTEL_TRACES_EXPORTER"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
DISABLED = "OTEL_SDK_DISABLED"
PROTOCOL = "http/protobuf"


def wanted(environ: Mapping[str, str]) -> bool:
    """True if the environment names an exporter of spans, or an address for them, and does not disable them."""
    if environ.get(DISABLED, "").strip().lower() == "true":
        return False
    exporter = environ.get(EXPORTER, "").strip()
    return exporter != "none" if exporter else any(environ.get(name) for name in ENDPOINTS)


def problem(environ: Mapping[str, str]) -> str | None:
    """Return why no spans are sent though the environment wants them, in one line with the remedy; else None."""
    if not wanted(environ):
        return None
    exporter = environ.get(EXPORTER, "").strip() or "otlp"
    if exporter != "otlp":
        return f"no traces are sent: {EXPORTER} is {exporter!r}; set it to otlp or none"
    protocol = next((environ[name] for name in PROTOCOLS if environ.get(name)), PROTOCOL)
    if protocol != PROTOCOL:
        return f"no traces are sent: the OTLP protocol is {protocol!r}; set {PROTOCOLS[1]} to {PROTOCOL}"
    try:
        plugins.require("otel", "OTEL_*")
    except ConfigurationError as error:
        return f"no traces are sent: {error.message}"
    return None
