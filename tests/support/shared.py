"""The models and settings of the stack that most tests share."""

from __future__ import annotations

from pathlib import Path

from tests.support import encoders
from tests.support.stacks import ROOT

SETTINGS = {
    "BATCHYARD_ALLOW_SIMULATED": "1",
    "BATCHYARD_MIN_WINDOW": "1s",
    "BATCHYARD_MAX_REQUESTS": "200000",
    "BATCHYARD_ENGINE_IDLE_SECONDS": "100",  # an idle one takes in two minutes what its start takes
    "BATCHYARD_REQUEST_TIMEOUT": "20",
    "BATCHYARD_LIVE_START_SECONDS": "300",  # no test waits for an engine that does not come
    "BATCHYARD_WEBHOOKS_ALLOW_PRIVATE": "1",
}


def models(examples: Path, calls: Path) -> str:
    """Return the models file. Engines find the examples' models in `examples`; model `logged` writes to `calls`."""
    return f"""
currency = "EUR"
hosted.api = {{ input = 0.5, output = 2 }}
[models.echo]
engine = "echo"
[models.other]
engine = "echo"
price = {{ input = 1, output = 2 }}
[models.vectors]
engine = "echo"
endpoints = ["/v1/embeddings"]
[models.slow]
engine = "echo"
endpoints = ["/v1/chat/completions", "/v1/completions", "/v1/messages"]
max_in_flight = 16
[models.slow.engine_args]
latency_ms = 200
[models.paced]
engine = "echo"
max_in_flight = 32
[models.paced.engine_args]
latency_ms = 500
[models.raced]
engine = "echo"
max_in_flight = 4
[models.raced.engine_args]
latency_ms = 250
[models.failing]
engine = "echo"
endpoints = ["/v1/chat/completions", "/v1/completions", "/v1/messages"]
[models.failing.engine_args]
fail_every = 3
[models.logged]
engine = "echo"
max_in_flight = 16
[models.logged.engine_args]
latency_ms = 10
call_log = "{calls}"
[models.late]
engine = "echo"
[models.late.engine_args]
latency_ms = 60000
[models.worded]
engine = "echo"
max_in_flight = 32
[models.worded.engine_args]
ms_per_token = 500
[models.endless]
engine = "echo"
max_in_flight = 1
[models.endless.engine_args]
latency_ms = 60000
[models.unmeasured]
engine = "echo"
[models.unmeasured.engine_args]
latency_ms = 60000
[models.nano]
engine = "transformers"
source = "{examples}/models/nano"
[models.nano.engine_args]
dtype = "float32"
max_model_len = 512
{encoders.entries("nano-").replace(str(ROOT / "examples"), str(examples))}
"""
