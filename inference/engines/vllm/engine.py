"""Engine `vllm`: AsyncLLM in this process behind vLLM's OpenAI handlers. Its answers are those of `vllm serve`.

Modelled on vllm/entrypoints/launchers/run_batch.py of vLLM 0.32.
"""

import asyncio
import base64
import importlib.util
import json
import logging
import time
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Any, ClassVar

import numpy as np

from batchyard.endpoints.catalog import CLASSIFY, COMPLETIONS, EMBEDDINGS, POOLING, TRANSCRIPTIONS
from batchyard.errors import EngineDied, EngineStartError
from batchyard.models import ModelSpec
from inference.engine import Engine, EngineAnswer, first_unsupported, unsupported_endpoint
from inference.engines import adapters
from inference.engines.vllm import internals
from inference.engines.vllm.arguments import MAX_RANK, OfVLLM, argument_names, engine_arguments, set_environment
from inference.engines.vllm.failures import Processes
from inference.engines.vllm.handlers import Handler, handlers, parse, refusal
from inference.engines.vllm.parameters import SUPPORTED, contradiction, sent, unusable_tools
from inference.engines.weights import model_sha256
from inference.progress import RequestProgress

TRY_OUT = "Here is a question of the length that people ask: which trains leave the yard before noon, and why? " * 3
"""A prompt that is as long as a short chat. Shorter ones take other kernels than nearly all requests do."""
TRY_OUT_TOKENS = 48
REPRODUCIBLE_TYPES = ("float32", "bfloat16")
"""Types of weights in which no answer of vLLM on a CPU depended on other requests (docs/verify.md, Measured)."""
AUDIO_PACKAGES = ("av", "soundfile")
TRIED = (COMPLETIONS, EMBEDDINGS, CLASSIFY, POOLING, TRANSCRIPTIONS)


class VLLM(OfVLLM, Engine):
    """Requests go to vLLM one by one; it batches them while it runs (continuous batching, prefix caching)."""

    name: ClassVar[str] = "vllm"
    serves: ClassVar[Collection[str]] = SUPPORTED
    adapters: ClassVar[bool] = True
    has_processes: ClassVar[bool] = True

    def __init__(self, spec: ModelSpec, request_timeout: float) -> None:
        super().__init__(spec, request_timeout)
        self._processes = Processes()
        self._death: asyncio.Task[str] | None = None
        self._client: Any = None
        self._handlers: Mapping[str, Handler] = {}
        self._versions: dict[str, str] = {}

    @classmethod
    def unsupported(cls, spec: ModelSpec, endpoint: str, body: dict[str, Any]) -> tuple[str, str] | None:
        able = bool(spec.engine_args.get("enable_auto_tool_choice"))
        return (
            first_unsupported(cls.name, endpoint, SUPPORTED[endpoint], body)
            or unusable_tools(endpoint, body, able)
            or contradiction(body)
        )

    @classmethod
    def adapter_refusal(cls, spec: ModelSpec, config: Mapping[str, Any]) -> str | None:
        kind, rank = config.get("peft_type", "LORA"), adapters.rank(config)
        if kind != "LORA":
            return f"it is of kind {kind}, and vLLM loads LORA only; merge it into a copy of the model"
        if rank > MAX_RANK:
            return f"its rank is {rank}, and vLLM takes {MAX_RANK} at most; merge it into a copy of the model"
        if rank > (most := spec.engine_args.get("max_lora_rank", MAX_RANK)):
            return f"its rank is {rank}, and engine_args.max_lora_rank is {most}; raise that, or leave it out"
        return None

    @classmethod
    def reproducible_refusal(cls, spec: ModelSpec) -> str | None:
        return None  # where it starts, it knows the hardware

    @classmethod
    def argument_names(cls) -> Collection[str] | None:
        return argument_names("AsyncEngineArgs", "BaseFrontendArgs")

    @classmethod
    def gpus(cls, spec: ModelSpec) -> float:
        arguments = spec.engine_args
        return float(arguments.get("tensor_parallel_size", 1) * arguments.get("pipeline_parallel_size", 1))

    async def start(self) -> None:
        try:
            with self._processes.watched():
                await self._start()
            await self._try_out()
        except EngineDied as death:
            await self.stop()
            raise EngineStartError(death.message) from death
        except Exception as error:  # any error of vLLM is the reason why the engine does not start
            cause = await asyncio.to_thread(self._processes.cause, error)
            await self.stop()
            raise EngineStartError(cause) from error

    async def answer(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer:
        answer = await self._one(endpoint, sent(endpoint, body), self.request_timeout)
        if body.get("return_documents") is False and answer.status_code == 200 and answer.body is not None:
            for result in answer.body["results"]:
                result.pop("document", None)
        return answer

    async def stream(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer | AsyncGenerator[bytes]:
        handler = self._handlers.get(endpoint)
        if handler is None:
            return unsupported_endpoint(self.spec.name, endpoint, self._handlers)
        request = parse(handler.schema, sent(endpoint, body))
        if isinstance(request, EngineAnswer):
            return request
        try:
            response = await handler.answer(request, None)
        except internals.EngineDeadError as death:
            raise EngineDied(await self._reason(str(death))) from death
        except Exception as error:
            if self._client.errored:
                raise EngineDied(await self._reason(f"{type(error).__name__}: {error}")) from error
            return refusal(internals.create_error_response(error))
        if not hasattr(response, "__aiter__"):
            return await self._answered(response)
        return self._events(response)

    async def _events(self, response: Any) -> AsyncGenerator[bytes]:
        """Yield the events of a stream of vLLM's, which has errors in it instead of raising them."""
        try:
            async for event in response:
                if not isinstance(event, str):  # responses yield objects
                    event = f"event: {event.type}\ndata: {event.model_dump_json(by_alias=True)}\n\n"
                if self._client.errored and '"error"' in event:
                    raise EngineDied(await self._reason(event))
                yield event.encode()
        except internals.EngineDeadError as death:
            raise EngineDied(await self._reason(str(death))) from death
        finally:
            await response.aclose()

    def measure(self, progress: RequestProgress) -> None:
        self._client.measure(progress)

    def has_begun(self, progress: RequestProgress) -> bool:
        return bool(self._client.has_begun(progress))

    def versions(self) -> dict[str, str]:
        return dict(self._versions)

    async def stop(self) -> None:
        if self._client is not None:
            self._client.shutdown(timeout=5)
            self._client = None

    async def _start(self) -> None:
        set_environment(self.spec)
        if (warning := internals.untested()) is not None:
            logging.getLogger(__name__).warning(warning)
        sha256 = asyncio.create_task(asyncio.to_thread(model_sha256, self.spec.source))
        import torch
        import transformers
        from starlette.datastructures import State

        arguments = engine_arguments(self.spec)
        # This context has vLLM's defaults for throughput; that of vLLM's batch runner has the smallest. On the CPU
        # the server's: a token of a step of 4,096 costs 1.07 times the CPU time of one of 2,048.
        on_cpu = internals.current_platform.is_cpu()
        context = internals.UsageContext.OPENAI_API_SERVER if on_cpu else internals.UsageContext.LLM_CLASS
        # Statistics cost vLLM time at every token.
        statistics = None if arguments.disable_log_stats else _Statistics(self)
        from inference.engines.vllm.metered import MeteredLLM  # it imports vLLM

        self._client = MeteredLLM.from_engine_args(
            internals.AsyncEngineArgs.from_cli_args(arguments),
            usage_context=context,
            stat_loggers=[lambda _config, _index: statistics] if statistics else None,
        )
        self.bounds_steps = self._client.bounds_steps
        config = self._client.model_config
        type_ = config.quantization or str(config.dtype).removeprefix("torch.")
        if self.spec.reproducible and on_cpu and type_ not in REPRODUCIBLE_TYPES:
            raise EngineStartError(
                f"reproducible: on CPUs it needs {' or '.join(REPRODUCIBLE_TYPES)}, and the model is in {type_}; "
                "remove it, or remove engine_args.dtype and quantization"
            )
        self.capacity = self._client.vllm_config.scheduler_config.max_num_seqs
        self.cache_tokens = self._client.vllm_config.cache_config.kv_cache_size_tokens or None  # an encoder has none
        state = State()
        await internals.init_app_state(self._client, state, arguments, await self._client.get_supported_tasks())
        self._handlers = handlers(state, arguments.allowed_media_domains)
        missing = [name for name in AUDIO_PACKAGES if importlib.util.find_spec(name) is None]
        # It warns of each file that it is not read by torchcodec, which is not installed (deploy/install.py).
        logging.getLogger("vllm.multimodal.media.audio").setLevel(logging.ERROR)
        if missing and TRANSCRIPTIONS.path in self._handlers:  # vLLM would refuse each request for want of them
            raise EngineStartError(
                f"vLLM reads no audio without {' and '.join(missing)}: pip install {' '.join(missing)}"
            )
        self._versions = {
            "engine": "vllm",
            "version": internals.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "model": self.spec.source,
            "model_sha256": await self._sha256(sha256),
            **{
                f"adapter_sha256 {name}": await asyncio.to_thread(model_sha256, adapter.source, adapters.CONFIG)
                for name, adapter in self.spec.adapters.items()
            },
            "dtype": str(self._client.model_config.dtype).removeprefix("torch."),
        }

    async def _try_out(self) -> None:
        """Answer a request: an engine that loads may lack a kernel. Raises EngineDied, with the cause."""
        config = self._client.model_config
        tokens = min(TRY_OUT_TOKENS, config.max_model_len - 2)
        prompt = [0] * tokens if config.skip_tokenizer_init else TRY_OUT
        body = {"model": self.spec.name, "prompt": prompt, "input": prompt, "truncate_prompt_tokens": tokens}
        body |= {"file_url": TRANSCRIPTIONS.example["file_url"], "language": "en"}
        endpoint = next(entry.path for entry in TRIED if entry.path in self._handlers)
        answer = await self._one(endpoint, {**body, "max_tokens": 2}, None)
        if answer.error is not None:
            raise EngineDied(answer.error["message"])

    async def _sha256(self, hashing: asyncio.Task[str]) -> str:
        try:
            return await hashing
        except FileNotFoundError:  # a model of a hub that vLLM has just fetched
            return await asyncio.to_thread(model_sha256, self.spec.source)

    async def _one(self, endpoint: str, body: dict[str, Any], seconds: float | None) -> EngineAnswer:
        handler = self._handlers.get(endpoint)
        if handler is None:
            return unsupported_endpoint(self.spec.name, endpoint, self._handlers)
        request = parse(handler.schema, body)
        if isinstance(request, EngineAnswer):
            return request
        vectors = endpoint == EMBEDDINGS.path and request.encoding_format == "float"
        if vectors:  # vLLM would write the numbers as text, from which they would be read again
            request.encoding_format, request.embed_dtype, request.endianness = "base64", "float32", "little"
        # Not wait_for: vLLM's handlers answer a cancellation with an error response, and it would return that.
        call = asyncio.create_task(handler.answer(request, None))
        try:
            finished, _ = await asyncio.wait([call], timeout=seconds)
            if not finished:
                self.answered_at = time.monotonic()
                return EngineAnswer.timed_out(self.request_timeout)
            response = call.result()
        except internals.EngineDeadError as death:
            return await self._died(str(death))
        except Exception as error:  # noqa: BLE001  as vLLM's HTTP layer does
            if self._client.errored:
                return await self._died(f"{type(error).__name__}: {error}")
            return refusal(internals.create_error_response(error))
        finally:
            call.cancel()
        self.answered_at = time.monotonic()
        answer = await self._answered(response)
        if vectors and answer.status_code == 200 and answer.body is not None:
            for entry in answer.body["data"]:
                entry["embedding"] = np.frombuffer(base64.b64decode(entry["embedding"]), "<f4")
        return answer

    async def _died(self, summary: str) -> EngineAnswer:
        """Return the answer to a request that was in the engine when it died."""
        return EngineAnswer.failed("engine_died", await self._reason(summary))

    async def _reason(self, summary: str) -> str:
        """Return why the engine died, found out once."""
        if self._death is None:
            self._death = asyncio.create_task(asyncio.to_thread(self._processes.death, summary))
        return await asyncio.shield(self._death)

    async def _answered(self, response: Any) -> EngineAnswer:
        if hasattr(response, "error"):
            if self._client.errored:
                return await self._died(response.error.message)
            return refusal(response)
        if hasattr(response, "model_dump"):
            return EngineAnswer(200, response.model_dump())
        return EngineAnswer(response.status_code, json.loads(response.body))


class _Statistics:
    """A logger of vLLM's statistics that keeps them in the engine. It has the methods that vLLM calls."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.preemptions = engine.prefix_tokens = engine.prefix_hits = 0
        engine.cache_use = 0.0

    def record(self, scheduler: Any, iteration: Any, **_others: Any) -> None:
        if scheduler is not None:
            self._engine.cache_use = scheduler.kv_cache_usage
            prefix = scheduler.prefix_cache_stats
            self._engine.prefix_tokens = (self._engine.prefix_tokens or 0) + prefix.queries
            self._engine.prefix_hits = (self._engine.prefix_hits or 0) + prefix.hits
        if iteration is not None:
            self._engine.preemptions = (self._engine.preemptions or 0) + iteration.num_preempted_reqs

    def log_engine_initialized(self) -> None:
        pass

    def log(self) -> None:
        pass
