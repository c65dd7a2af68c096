"""What goes from the engines to whoever runs the pipeline: tables of answers, and deaths of engines."""

from dataclasses import dataclass

import pyarrow as pa

from batchyard.statuses import AfterDeath

ANSWERS = pa.schema(
    [
        ("line", pa.int64()),
        ("ok", pa.bool_()),
        ("answer", pa.string()),
        ("input_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("seconds", pa.float64()),
        ("reasoning_tokens", pa.int64()),
        ("served_model", pa.string()),
        ("vectors", pa.binary()),
    ]
)
"""line: the request's number; ok: status 200; answer: the output line as JSON; token counts from the engine's usage;
seconds: time in the engine, null if nobody measured it; reasoning_tokens: of the output tokens, as the engine reported
them; served_model: what an endpoint calls the model that answered, null if there is none; vectors: the embeddings that
were set aside from `answer` (batchyard.endpoints.vectors), null if there are none."""


@dataclass(frozen=True)
class Death:
    """One death of an engine."""

    model: str
    engine: str  # identifies the engine that died: each of its callers reports its death
    replica: int  # index among the model's replicas
    reason: str  # why it died, as far as is known
    requests: int  # how many of the run were in it
    next: AfterDeath
