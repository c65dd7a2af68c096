"""Engine `vllm`: AsyncLLM in this process behind vLLM's own OpenAI handlers, so that answers are those of `vllm serve`.

What is vLLM's internal API is here and in job_stage.py; tests/inference's test_vllm.py and test_job.py pin it. Modelled
on vllm/entrypoints/launchers/run_batch.py of vLLM 0.32.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import math
import os
import re
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from batchyard.errors import EngineStartError
from batchyard.models import ModelSpec
from batchyard.wording import nearest
from inference.engine import Answer, Engine, first_unsupported, refusal_code
from inference.engines.weights import model_sha256

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
COMMON = frozenset({"model", "truncate_prompt_tokens", "truncation_side", "add_special_tokens"})
# fmt: off
SAMPLING = COMMON | {
    "allowed_token_ids", "bad_words", "frequency_penalty", "ignore_eos", "include_stop_str_in_output", "length_penalty",
    "logit_bias", "logprobs", "max_tokens", "min_p", "min_tokens", "n", "presence_penalty", "prompt_logprobs",
    "repetition_penalty", "response_format", "return_token_ids", "return_tokens_as_token_ids", "seed",
    "skip_special_tokens", "spaces_between_special_tokens", "stop", "stop_token_ids", "structured_outputs",
    "temperature", "thinking_token_budget", "top_k", "top_p", "use_beam_search", "vllm_xargs", "echo",
}
SUPPORTED = {
    CHAT: SAMPLING | {
        "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
        "reasoning_effort", "include_reasoning", "add_generation_prompt", "continue_final_message",
        "chat_template_kwargs", "documents", "mm_processor_kwargs",
    },
    COMPLETIONS: SAMPLING | {"prompt"},
    EMBEDDINGS: COMMON | {"input", "dimensions", "encoding_format"},
}
# fmt: on
"""What vLLM honours. It ignores what it does not know, so what is not here is refused; a test compares it to vLLM's."""

CPU_DEFAULTS = {
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**30,
    "gpu_memory_utilization": 0.1,
    "block_size": 32,
}
"""On CPU: torch.compile costs more than it gives, and the memory share is one of all memory. Prompts share whole blocks
of the KV cache; of 128 tokens, which is vLLM's size there, 240 prompts with four beginnings took 1.4 times as long."""
FEW_CPUS = 4
ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""On few CPUs the model runs in the process that schedules it. vLLM would give it one of its own, bound to all CPUs but
one: two processes that wait for each other, busily. 6,000 requests to 1 M parameters took 16.5 s and 24 s of CPU time
instead of 20.7 and 40 on two CPUs, and the engine 22 s to start instead of 32."""
PARALLEL = {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"}
SMALL_BYTES = 16 * 2**20
"""A smaller model's threads wait for each other more than they work: with 1 M parameters two took 1.4 times as long as
one, with 5 M as long, with 15 M and 300 M less by a third."""
CAUSE = re.compile(r"\b[\w.]+(?:Error|Exception): .+$")


class VLLM(Engine):
    """Requests go in one by one; vLLM batches them as it runs (continuous batching, prefix caching)."""

    name: ClassVar[str] = "vllm"
    has_processes: ClassVar[bool] = True

    def __init__(self, spec: ModelSpec, request_timeout: float) -> None:
        super().__init__(spec, request_timeout)
        self._logs: list[tuple[Path, int]] = []
        self._client: Any = None
        self._handlers: dict[str, tuple[Any, Any]] = {}
        self._versions: dict[str, str] = {}

    @classmethod
    def unsupported(cls, spec: ModelSpec, endpoint: str, body: dict[str, Any]) -> tuple[str, str] | None:
        found = first_unsupported("vllm", SUPPORTED[endpoint], body)
        if found is not None:
            return found
        automatic = body.get("tools") and body.get("tool_choice") in (None, "auto")
        if automatic and not spec.engine_args.get("enable_auto_tool_choice"):
            return "body.tools", "tools need enable_auto_tool_choice and tool_call_parser in the model's engine_args"
        return None

    @classmethod
    def gpus(cls, spec: ModelSpec) -> float:
        arguments = spec.engine_args
        return float(arguments.get("tensor_parallel_size", 1) * arguments.get("pipeline_parallel_size", 1))

    async def start(self) -> None:
        self._logs = own_logs()
        try:
            await self._start()
            await self._try_out()
        except Exception as error:  # whatever vLLM may raise, it is why the engine does not start
            await self.stop()
            raise EngineStartError(reason(error, self._logs)) from error

    async def answer(self, endpoint: str, bodies: list[dict[str, Any]]) -> list[Answer]:
        return list(await asyncio.gather(*(self._one(endpoint, body, self.request_timeout) for body in bodies)))

    def versions(self) -> dict[str, str]:
        return dict(self._versions)

    async def stop(self) -> None:
        if self._client is not None:
            self._client.shutdown(timeout=5)
            self._client = None

    async def _start(self) -> None:
        set_environment(self.spec)
        sha256 = asyncio.create_task(asyncio.to_thread(model_sha256, self.spec.source))
        import torch
        import transformers
        from starlette.datastructures import State
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest
        from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.version import __version__

        arguments = engine_arguments(self.spec)
        # vLLM's defaults for this context are those for throughput; for its own batch runner it has the smallest.
        self._client = AsyncLLM.from_engine_args(
            AsyncEngineArgs.from_cli_args(arguments), usage_context=UsageContext.LLM_CLASS
        )
        self.capacity = self._client.vllm_config.scheduler_config.max_num_seqs
        state = State()
        await init_app_state(self._client, state, arguments, await self._client.get_supported_tasks())
        chat = getattr(state, "openai_serving_chat", None)
        completion = getattr(state, "openai_serving_completion", None)
        self._handlers = {
            CHAT: (ChatCompletionRequest, chat and chat.create_chat_completion),
            COMPLETIONS: (CompletionRequest, completion and completion.create_completion),
            EMBEDDINGS: (EmbeddingRequest, getattr(state, "serving_embedding", None)),
        }
        self._versions = {
            "engine": "vllm",
            "version": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "model": self.spec.source,
            "model_sha256": await self._sha256(sha256),
            "dtype": str(self._client.model_config.dtype).removeprefix("torch."),
        }

    async def _try_out(self) -> None:
        """One token, so that an engine that can be loaded but not run (a kernel this machine lacks) does not start."""
        body = {"model": self.spec.name, "prompt": [0], "input": [0], "max_tokens": 1}
        embeds = self._handlers[EMBEDDINGS][1] is not None
        answer = await self._one(EMBEDDINGS if embeds else COMPLETIONS, body, None)
        if answer.error is not None:
            raise RuntimeError(answer.error["message"])

    async def _sha256(self, counting: asyncio.Task[str]) -> str:
        try:
            return await counting
        except FileNotFoundError:  # a hub model that was not in the cache before vLLM fetched it
            return await asyncio.to_thread(model_sha256, self.spec.source)

    async def _one(self, endpoint: str, body: dict[str, Any], seconds: float | None) -> Answer:
        from vllm.entrypoints.serve import create_error_response
        from vllm.v1.engine.exceptions import EngineDeadError

        schema, handler = self._handlers[endpoint]
        if not handler:
            return Answer.refused(f"model {self.spec.name} has no {endpoint}", code="unsupported_endpoint")
        request = parse(schema, body)
        if isinstance(request, Answer):
            return request
        # Not wait_for: the handlers answer a cancellation with an error response, which it would take for the result.
        call = asyncio.create_task(handler(request))
        try:
            done, _ = await asyncio.wait([call], timeout=seconds)
            if not done:
                self.answered_at = time.monotonic()
                return Answer.timed_out(self.request_timeout)
            response = call.result()
        except EngineDeadError as death:
            return self._died(death)
        except Exception as error:  # noqa: BLE001  vLLM's own HTTP layer turns any of them into an error response
            if self._client.errored:
                return self._died(error)
            return refusal(create_error_response(error))
        finally:
            call.cancel()
        self.answered_at = time.monotonic()
        return self._answered(response)

    def _died(self, error: Exception) -> Answer:
        return Answer.failed("engine_died", reason(error, self._logs))

    def _answered(self, response: Any) -> Answer:
        if hasattr(response, "error"):
            if self._client.errored:
                return self._died(RuntimeError(response.error.message))
            return refusal(response)
        if hasattr(response, "model_dump"):
            return Answer(200, response.model_dump())
        return Answer(response.status_code, json.loads(response.body))


def engine_arguments(spec: ModelSpec) -> Namespace:
    """vLLM's arguments, with the model's `engine_args` over our defaults over its own.

    Raises:
        EngineStartError: a key is none of vLLM's; names the nearest.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import BaseFrontendArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    check_names(spec.engine_args, AsyncEngineArgs, BaseFrontendArgs)
    parser = FlexibleArgumentParser()
    BaseFrontendArgs.add_cli_args(parser)
    AsyncEngineArgs.add_cli_args(parser)
    arguments: Namespace = parser.parse_args([])
    ours = {
        **defaults(spec),
        "model": spec.source,
        "served_model_name": [spec.name],
        "enable_prompt_tokens_details": True,
        "enable_log_requests": False,
    }
    if spec.endpoints == (EMBEDDINGS,):
        ours["runner"] = "pooling"
    for key, value in {**ours, **spec.engine_args}.items():
        setattr(arguments, key, value)
    return arguments


def check_names(arguments: Mapping[str, Any], *kinds: Any) -> None:
    """Refuse arguments that are fields of none of vLLM's `kinds`.

    Raises:
        EngineStartError: names the nearest.
    """
    known = [field.name for kind in kinds for field in dataclasses.fields(kind)]
    for key in arguments:
        if key not in known:
            raise EngineStartError(f"engine_args.{key}: vLLM has no such argument; did you mean {nearest(key, known)}?")


def defaults(spec: ModelSpec) -> dict[str, Any]:
    """Arguments of vLLM's engine that are ours unless `engine_args` says otherwise."""
    from vllm.platforms import current_platform

    ours: dict[str, Any] = {"enable_prefix_caching": True, "disable_log_stats": True}
    if current_platform.is_cpu():
        ours |= CPU_DEFAULTS
    if few_cpus() and not PARALLEL & spec.engine_args.keys():
        ours["distributed_executor_backend"] = ONE_PROCESS
    return ours


def set_environment(spec: ModelSpec) -> None:
    """What vLLM reads from the environment of the process it is started in."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if Path(spec.source).is_dir():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Ray gives an actor as many threads as CPUs, at least one; vLLM chooses for itself what it is not given.
    os.environ.pop("OMP_NUM_THREADS", None)
    if few_cpus():
        os.environ["OMP_NUM_THREADS"] = "1" if weights_bytes(spec.source) < SMALL_BYTES else str(os.cpu_count())


def few_cpus() -> bool:
    """Whether vLLM runs on CPU, and has so few that one matters."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu()) and (os.cpu_count() or 1) <= FEW_CPUS


def weights_bytes(source: str) -> float:
    """Of a model in a local folder; endless for one of a hub, which is not there yet."""
    folder = Path(source)
    if not folder.is_dir():
        return math.inf
    return sum(file.stat().st_size for file in folder.glob("*") if file.suffix in (".safetensors", ".bin", ".pt"))


def parse(schema: Any, body: dict[str, Any]) -> Any:
    """The body as vLLM's request, or the Answer that refuses it."""
    from vllm.entrypoints.serve import create_error_response

    try:
        return _validator(schema).validate_python(body)
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"] if part in body) or None
        return Answer.refused(first["msg"], param=param, code="invalid_value")
    except ValueError as error:  # vLLM's validators have errors of their own
        return refusal(create_error_response(error))


@functools.cache
def _validator(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def refusal(response: Any) -> Answer:
    """vLLM's error response as OpenAI's error body."""
    error = response.error
    return Answer.refused(error.message, param=error.param, code=refusal_code(error.message), status=int(error.code))


def own_logs() -> list[tuple[Path, int]]:
    """The files that this process's output goes to, with their present sizes."""
    logs = []
    for descriptor in (1, 2):
        path = Path(f"/proc/self/fd/{descriptor}")
        if path.is_symlink() and path.resolve().is_file():
            logs.append((path.resolve(), path.stat().st_size))
    return logs


def reason(error: Exception, logs: list[tuple[Path, int]]) -> str:
    """Why vLLM did not start. Its engine process says that in the log, and only that it failed to us."""
    said = f"{type(error).__name__}: {error}"
    if "Engine" not in said:
        return said
    for path, size in logs:
        with path.open("rb") as log:
            log.seek(size)
            lines = log.read().decode(errors="replace").splitlines()
        causes = [found[0] for line in lines if (found := CAUSE.search(line)) and "Engine" not in found[0]]
        if causes:
            return causes[-1]
    return said
