"""Engine `vllm-job`: vLLM through `ray.data.llm`, started for one run of the pipeline and stopped after it.

This module is light and starts nothing; `job_runner` runs the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, PositiveInt

from batchyard.endpoints.catalog import EMBEDDINGS
from batchyard.errors import EngineStartError
from batchyard.models import ModelSpec
from inference.engine import JobEngine, first_not_text, first_unsupported
from inference.engines.vllm import parameters
from inference.engines.vllm.arguments import OfVLLM, argument_names

if TYPE_CHECKING:
    import pyarrow as pa

LOST = frozenset({"echo", "logprobs", "n", "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids"}) | {
    *("include_reasoning", "length_penalty", "mm_processor_kwargs", "parallel_tool_calls", "tool_choice", "tools"),
    *("top_logprobs", "use_beam_search"),
}
"""Parameters that vLLM's server honours and `ray.data.llm` loses: it returns one text, which nothing parses."""
SUPPORTED = {endpoint: names - LOST for endpoint, names in parameters.SUPPORTED.items()}
SUPPORTED[EMBEDDINGS.path] -= parameters.CHAT_TEMPLATE | {"messages"}


class JobArguments(BaseModel):
    """The job's keys of `engine_args`. All others are vLLM's, which checks their values at start.

    Attributes:
        batch_size: rows that go to a replica, and come back, together.
        max_concurrent_batches: batches in a replica at once; None: as many as hold `max_in_flight` rows.
    """

    model_config = ConfigDict(extra="allow")

    batch_size: PositiveInt = 32
    max_concurrent_batches: PositiveInt | None = None


class VLLMJob(OfVLLM, JobEngine):
    """`ray.data.llm` takes one prompt for a request and returns one text."""

    name: ClassVar[str] = "vllm-job"
    adds_replicas: ClassVar[bool] = True
    arguments: ClassVar[type[BaseModel] | None] = JobArguments

    @classmethod
    def unsupported(cls, spec: ModelSpec, endpoint: str, body: dict[str, Any]) -> tuple[str, str] | None:
        unsupported = first_unsupported(cls.name, endpoint, SUPPORTED[endpoint], body)
        if unsupported is not None:
            return unsupported
        for name in ("prompt", "input"):
            value = body.get(name)
            if isinstance(value, list) and len(value) > 1 and not isinstance(value[0], int):
                return f"body.{name}", f"engine vllm-job takes one {name} per request, not {len(value)}"
        return first_not_text(cls.name, body)

    @classmethod
    def argument_names(cls) -> Collection[str] | None:
        names = argument_names("AsyncEngineArgs")
        return names and names | JobArguments.model_fields.keys()

    @classmethod
    def run(cls, spec: ModelSpec, endpoint: str, rows: pa.Table, **limits: Any) -> Generator[pa.Table]:
        tables: Generator[pa.Table] = _runner().run(spec, endpoint, rows, **limits)
        return tables

    @classmethod
    def versions(cls, spec: ModelSpec, **limits: Any) -> dict[str, str]:
        versions: dict[str, str] = _runner().versions(spec, **limits)
        return versions


def _runner() -> ModuleType:
    try:
        from inference.engines.vllm import job_runner  # imports torch
    except ImportError as error:
        raise EngineStartError(f"engine vllm-job needs vLLM where segments run: {error}") from error
    return job_runner
