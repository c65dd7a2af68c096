"""The stage of `ray.data.llm` that asks vLLM, made to take OpenAI request bodies and to give OpenAI's answers.

vLLM's render server reads the requests, and its response classes make the answers, so that both are as in engine
`vllm`. Importing this imports torch.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from batchyard import output_lines
from batchyard.errors import EngineStartError
from batchyard.models import ModelSpec
from inference import ray_internals
from inference.engine import Answer, refusal_code
from inference.engines import orphan_reaper
from inference.engines.vllm import engine as vllm
from inference.engines.vllm.job import JobArguments

INVALID = ("TypeError", "ValueError", "VLLMValidationError")
"""Errors of vLLM that are about the request."""


@dataclass
class Finish:
    """What vLLM says of a finished request and the stage would drop. It takes the place of the request's metrics, which
    the stage carries and which are none, as vLLM's statistics are off."""

    finish_reason: str | None
    stop_reason: int | str | None
    cached_tokens: int


class JobStage(ray_internals.vllm_stage()):  # type: ignore[misc]  # Ray has no types
    """Maps rows (line, custom_id, body) to rows with the columns of `answers.ANSWERS`.

    Raises:
        EngineStartError: in the constructor, with vLLM's own reason on one line.
    """

    def __init__(self, *, spec: ModelSpec, endpoint: str, request_timeout: float, **kwargs: Any) -> None:
        self._spec = spec
        self._endpoint = endpoint
        self._request_timeout = request_timeout
        orphan_reaper.start(f"job/{os.getpid()}")
        vllm.set_environment(spec)
        logs = vllm.own_logs()
        try:
            self._start(**kwargs)
        except Exception as error:  # whatever vLLM may raise, it is why the engine does not start
            raise EngineStartError(" ".join(vllm.reason(error, logs).split())) from error

    def _start(self, *, engine_kwargs: dict[str, Any], **kwargs: Any) -> None:
        from vllm import AsyncEngineArgs
        from vllm.entrypoints.openai.models.protocol import BaseModelPath
        from vllm.entrypoints.openai.models.serving import OpenAIModelRegistry
        from vllm.entrypoints.scale_out.render.serving import ServingRender
        from vllm.entrypoints.serve.utils.fingerprint import get_system_fingerprint
        from vllm.renderers.online_renderer import OnlineRenderer

        vllm.check_names(JobArguments.model_validate(self._spec.engine_args).model_extra or {}, AsyncEngineArgs)
        kwargs["expected_input_keys"] = ["custom_id", "body"]
        super().__init__(engine_kwargs={**vllm.defaults(self._spec), **engine_kwargs}, **kwargs)
        engine = self.llm.engine
        engine.generate = self._last(engine.generate)
        engine.encode = self._last(engine.encode)
        self._fingerprint = get_system_fingerprint(engine.vllm_config)
        self._render = ServingRender(
            OpenAIModelRegistry(engine.model_config, [BaseModelPath(self._spec.name, self._spec.source)]),
            OnlineRenderer(
                engine.model_config,
                engine.renderer,
                request_logger=None,
                chat_template=None,
                chat_template_content_format="auto",
            ),
        )

    def _last(self, ask: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        """An engine's method with only the last output of a request, which has to come within the request timeout."""

        async def last(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async with asyncio.timeout(self._request_timeout):
                results = [result async for result in ask(*args, **kwargs)]
            result = results[-1]
            if hasattr(result, "metrics"):
                said = result.outputs[0]
                result.metrics = Finish(said.finish_reason, said.stop_reason, result.num_cached_tokens or 0)
            yield result

        return last

    async def udf(self, batch: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        """An answer for each row, in any order."""
        rows = {row[self.IDX_IN_BATCH_COLUMN]: (row["custom_id"], orjson.loads(row["body"])) for row in batch}
        asked = []
        for row in batch:
            index = row[self.IDX_IN_BATCH_COLUMN]
            custom_id, body = rows[index]
            found = await self._input(body)
            if isinstance(found, Answer):
                yield {self.IDX_IN_BATCH_COLUMN: index, **_columns(custom_id, found)}
            else:
                asked.append({**row, **found})
        async for said in super().udf(asked):
            index = said[self.IDX_IN_BATCH_COLUMN]
            custom_id, body = rows[index]
            yield {self.IDX_IN_BATCH_COLUMN: index, **_columns(custom_id, self._answer(body, said))}

    async def _input(self, body: dict[str, Any]) -> dict[str, Any] | Answer:
        """A request as the stage takes it, or the answer that refuses it."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest
        from vllm.entrypoints.pooling.embed.protocol import EmbeddingCompletionRequest
        from vllm.entrypoints.serve import create_error_response

        schema, read = {
            vllm.CHAT: (ChatCompletionRequest, self._render.render_chat_request),
            vllm.COMPLETIONS: (CompletionRequest, self._render.render_completion_request),
            vllm.EMBEDDINGS: (EmbeddingCompletionRequest, self._embedding_input),
        }[self._endpoint]
        request = vllm.parse(schema, body)
        if isinstance(request, Answer):
            return request
        try:
            found = await read(request)
        except Exception as error:  # noqa: BLE001  as in vLLM's own HTTP layer
            return vllm.refusal(create_error_response(error))
        if hasattr(found, "error"):
            return vllm.refusal(found)
        if isinstance(found, list):
            if len(found) != 1:
                return Answer.refused(f"engine {self._spec.engine} takes one prompt per request, not {len(found)}")
            found = found[0]
        if isinstance(found, dict):
            return found
        return {"tokenized_prompt": found.token_ids, "sampling_params": _parameters(found.sampling_params)}

    async def _embedding_input(self, request: Any) -> list[dict[str, Any]]:
        found = await self._render.online_renderer.preprocess_completion(
            request, prompt_input=request.input, prompt_embeds=None
        )
        parameters = {"dimensions": request.dimensions, "use_activation": request.use_activation}
        return [{"tokenized_prompt": one["prompt_token_ids"], "pooling_params": parameters} for one in found]

    def _answer(self, body: dict[str, Any], said: dict[str, Any]) -> Answer:
        """What the stage said of a request, as its answer."""
        error = said["__inference_error__"]
        if error:
            kind, _, message = error.partition(": ")
            if kind == TimeoutError.__name__:
                return Answer.timed_out(self._request_timeout)
            if kind in INVALID:
                return Answer.refused(message, code=refusal_code(message))
            return Answer.failed("engine_error", error)
        response = self._embedding(body, said) if self._endpoint == vllm.EMBEDDINGS else self._generation(said)
        return Answer(200, response.model_dump())

    def _generation(self, said: dict[str, Any]) -> Any:
        from vllm.entrypoints.openai.chat_completion import protocol as chat
        from vllm.entrypoints.openai.completion import protocol as completion
        from vllm.entrypoints.serve.engine.protocol import PromptTokenUsageInfo, UsageInfo

        finish = Finish(**said["metrics"])
        given, made = said["num_input_tokens"], said["num_generated_tokens"]
        usage = UsageInfo(
            prompt_tokens=given,
            completion_tokens=made,
            total_tokens=given + made,
            prompt_tokens_details=PromptTokenUsageInfo(cached_tokens=finish.cached_tokens),
        )
        common = {"model": self._spec.name, "usage": usage, "system_fingerprint": self._fingerprint}
        ending = {"index": 0, "finish_reason": finish.finish_reason, "stop_reason": finish.stop_reason}
        text = said["generated_text"]
        if self._endpoint == vllm.CHAT:
            message = chat.ChatMessage(role="assistant", content=text)
            choice = chat.ChatCompletionResponseChoice(message=message, **ending)
            return chat.ChatCompletionResponse(choices=[choice], **common)
        choice = completion.CompletionResponseChoice(text=text, **ending)
        return completion.CompletionResponse(choices=[choice], **common)

    def _embedding(self, body: dict[str, Any], said: dict[str, Any]) -> Any:
        from vllm.entrypoints.pooling.embed.protocol import EmbeddingResponse, EmbeddingResponseData
        from vllm.entrypoints.serve.engine.protocol import UsageInfo

        vector, tokens = said["embeddings"].astype("float32"), said["num_input_tokens"]
        packed = body.get("encoding_format") == "base64"
        data = EmbeddingResponseData(
            index=0, embedding=base64.b64encode(vector.tobytes()).decode() if packed else vector.tolist()
        )
        usage = UsageInfo(prompt_tokens=tokens, total_tokens=tokens)
        return EmbeddingResponse(model=self._spec.name, data=[data], usage=usage)


def _parameters(params: Any) -> dict[str, Any]:
    """vLLM's SamplingParams as what the stage makes them of again."""
    found = {name: getattr(params, name) for name in params.__struct_fields__}
    structured = found["structured_outputs"]
    if structured is not None:
        given = {name: value for name, value in asdict(structured).items() if value and not name.startswith("_")}
        found["structured_outputs"] = given
    return found


def _columns(custom_id: str, answer: Answer) -> dict[str, Any]:
    """The columns of `answers.ANSWERS` that an answer makes, all but the line number."""
    body = None if answer.body is None else orjson.dumps(answer.body)
    usage: dict[str, Any] = answer.body["usage"] if answer.status_code == 200 and answer.body else {}
    return {
        "ok": answer.status_code == 200,
        "answer": output_lines.line(custom_id, answer.status_code, body, answer.error),
        "input_tokens": usage.get("prompt_tokens") or 0,
        "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        "output_tokens": usage.get("completion_tokens") or 0,
    }
