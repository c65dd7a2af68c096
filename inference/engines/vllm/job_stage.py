"""The stage of `ray.data.llm` that calls vLLM, with OpenAI request bodies as input and OpenAI's answers as output.

vLLM's render server reads the requests and its response classes form the answers, as in engine `vllm`. Importing this
module imports torch.
"""

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from typing import Any

from batchyard import json_lines
from batchyard.endpoints import output_lines, responses, vectors
from batchyard.endpoints.catalog import CHAT, COMPLETIONS, EMBEDDINGS
from batchyard.errors import ConfigurationError, EngineStartError
from batchyard.failures.reasons import explained
from batchyard.models import ModelSpec
from inference import ray_data_internals
from inference.engine import EngineAnswer, refusal_code
from inference.engines import orphan_reaper
from inference.engines.registry import check_arguments
from inference.engines.vllm import internals
from inference.engines.vllm.arguments import defaults, set_environment
from inference.engines.vllm.failures import Processes
from inference.engines.vllm.handlers import parse, refusal

INVALID = ("TypeError", "ValueError", "VLLMValidationError")
"""Errors of vLLM that refuse the request."""


@dataclass
class Finish:
    """The end of a request, which Ray's stage would drop.

    It takes the place of the request's metrics. The stage carries those, and they are empty: vLLM's statistics are off.
    """

    finish_reason: str | None
    stop_reason: int | str | None
    cached_tokens: int


class AnswerStage(ray_data_internals.vllm_stage()):  # type: ignore[misc]  # Ray has no types
    """Maps rows (line, custom_id, body) to ANSWERS. The constructor raises EngineStartError."""

    def __init__(self, *, spec: ModelSpec, endpoint: str, request_timeout: float, **kwargs: Any) -> None:
        self._spec = spec
        self._endpoint = endpoint
        self._request_timeout = request_timeout
        try:
            check_arguments(spec)
        except ConfigurationError as error:
            raise EngineStartError(explained(error.message)) from error
        orphan_reaper.start(f"job/{os.getpid()}")
        set_environment(spec)
        processes = Processes()
        try:
            with processes.watched():
                self._start(**kwargs)
        except Exception as error:  # any error of vLLM is the reason why the engine does not start
            raise EngineStartError(explained(processes.cause(error))) from error

    def _start(self, *, engine_kwargs: dict[str, Any], **kwargs: Any) -> None:
        kwargs["expected_input_keys"] = ["custom_id", "body"]
        super().__init__(engine_kwargs={**defaults(self._spec), **engine_kwargs}, **kwargs)
        engine = self.llm.engine
        engine.generate = self._last_output(engine.generate)
        engine.encode = self._last_output(engine.encode)
        self._fingerprint = internals.get_system_fingerprint(engine.vllm_config)
        self._render = internals.ServingRender(
            internals.OpenAIModelRegistry(
                engine.model_config, [internals.BaseModelPath(self._spec.name, self._spec.source)]
            ),
            internals.OnlineRenderer(
                engine.model_config,
                engine.renderer,
                request_logger=None,
                chat_template=None,
                chat_template_content_format="auto",
            ),
        )

    def _last_output(self, method: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        """Wrap a method to yield only a request's last output. Raises TimeoutError on iteration after the timeout."""

        async def last_output(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async with asyncio.timeout(self._request_timeout):
                results = [result async for result in method(*args, **kwargs)]
            result = results[-1]
            if hasattr(result, "metrics"):
                output = result.outputs[0]
                result.metrics = Finish(output.finish_reason, output.stop_reason, result.num_cached_tokens or 0)
            yield result

        return last_output

    async def udf(self, batch: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        """Yield an answer for each row, in any order."""
        rows = {row[self.IDX_IN_BATCH_COLUMN]: (row["custom_id"], json_lines.loads(row["body"])) for row in batch}
        inputs = []
        for row in batch:
            index = row[self.IDX_IN_BATCH_COLUMN]
            custom_id, body = rows[index]
            columns = await self._input(body)
            if isinstance(columns, EngineAnswer):
                yield {self.IDX_IN_BATCH_COLUMN: index, **_columns(custom_id, columns)}
            else:
                inputs.append({**row, **columns})
        async for output in super().udf(inputs):
            index = output[self.IDX_IN_BATCH_COLUMN]
            custom_id, body = rows[index]
            yield {self.IDX_IN_BATCH_COLUMN: index, **_columns(custom_id, self._answer(body, output))}

    async def _input(self, body: dict[str, Any]) -> dict[str, Any] | EngineAnswer:
        """The columns of a request for Ray's stage, or the answer that refuses it."""
        schema, render = {
            CHAT.path: (internals.ChatCompletionRequest, self._render.render_chat_request),
            COMPLETIONS.path: (internals.CompletionRequest, self._render.render_completion_request),
            EMBEDDINGS.path: (internals.EmbeddingCompletionRequest, self._embedding_input),
        }[self._endpoint]
        request = parse(schema, body)
        if isinstance(request, EngineAnswer):
            return request
        try:
            prompt = await render(request)
        except Exception as error:  # noqa: BLE001  as in vLLM's HTTP layer
            return refusal(internals.create_error_response(error))
        if hasattr(prompt, "error"):
            return refusal(prompt)
        if isinstance(prompt, list):
            if len(prompt) != 1:
                return EngineAnswer.refused(
                    f"engine {self._spec.engine} takes one prompt per request, not {len(prompt)}"
                )
            prompt = prompt[0]
        if isinstance(prompt, dict):
            return prompt
        return {"tokenized_prompt": prompt.token_ids, "sampling_params": _sampling_params(prompt.sampling_params)}

    async def _embedding_input(self, request: Any) -> list[dict[str, Any]]:
        prompts = await self._render.online_renderer.preprocess_completion(
            request, prompt_input=request.input, prompt_embeds=None
        )
        parameters = {"dimensions": request.dimensions, "use_activation": request.use_activation}
        return [{"tokenized_prompt": prompt["prompt_token_ids"], "pooling_params": parameters} for prompt in prompts]

    def _answer(self, body: dict[str, Any], output: dict[str, Any]) -> EngineAnswer:
        """The stage's output for a request as its answer."""
        error = output["__inference_error__"]
        if error:
            kind, _, message = error.partition(": ")
            if kind == TimeoutError.__name__:
                return EngineAnswer.timed_out(self._request_timeout)
            if kind in INVALID:
                return EngineAnswer.refused(message, code=refusal_code(message))
            return EngineAnswer.failed("engine_error", error)
        if self._endpoint == EMBEDDINGS.path:
            return EngineAnswer(200, self._embedding(body, output))
        return EngineAnswer(200, responses.explained(self._generation(output).model_dump()))

    def _generation(self, output: dict[str, Any]) -> Any:
        finish = Finish(**output["metrics"])
        prompt_tokens, completion_tokens = output["num_input_tokens"], output["num_generated_tokens"]
        usage = internals.UsageInfo(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=internals.PromptTokenUsageInfo(cached_tokens=finish.cached_tokens),
        )
        common = {"model": self._spec.name, "usage": usage, "system_fingerprint": self._fingerprint}
        ending = {"index": 0, "finish_reason": finish.finish_reason, "stop_reason": finish.stop_reason}
        text = output["generated_text"]
        if self._endpoint == CHAT.path:
            message = internals.ChatMessage(role="assistant", content=text)
            choice = internals.ChatCompletionResponseChoice(message=message, **ending)
            return internals.ChatCompletionResponse(choices=[choice], **common)
        choice = internals.CompletionResponseChoice(text=text, **ending)
        return internals.CompletionResponse(choices=[choice], **common)

    def _embedding(self, body: dict[str, Any], output: dict[str, Any]) -> dict[str, Any]:
        vector, tokens = output["embeddings"].astype("float32"), output["num_input_tokens"]
        data = internals.EmbeddingResponseData(index=0, embedding="")
        usage = internals.UsageInfo(prompt_tokens=tokens, total_tokens=tokens)
        response: dict[str, Any] = internals.EmbeddingResponse(
            model=self._spec.name, data=[data], usage=usage
        ).model_dump()
        packed = body.get("encoding_format") == "base64"
        response["data"][0]["embedding"] = base64.b64encode(vector.tobytes()).decode() if packed else vector
        return response


def _sampling_params(params: Any) -> dict[str, Any]:
    """The fields of vLLM's SamplingParams, from which Ray's stage builds them again."""
    fields = {name: getattr(params, name) for name in params.__struct_fields__}
    structured = fields["structured_outputs"]
    if structured is not None:
        fields["structured_outputs"] = {
            name: value for name, value in asdict(structured).items() if value and not name.startswith("_")
        }
    return fields


def _columns(custom_id: str, answer: EngineAnswer) -> dict[str, Any]:
    """An answer as the columns of `answers.ANSWERS`, without the line number."""
    content, arrays = (None, None) if answer.body is None else vectors.set_aside(answer.body)
    body = None if content is None else json_lines.dumps(content)
    usage = responses.usage(answer.body) if answer.status_code == 200 else responses.TokenUsage()
    return {
        "ok": answer.status_code == 200,
        "answer": output_lines.line(custom_id, answer.status_code, body, answer.error),
        "input_tokens": usage.input_tokens or 0,
        "cached_tokens": usage.cached_tokens or 0,
        "output_tokens": usage.output_tokens or 0,
        "seconds": None,
        "reasoning_tokens": usage.reasoning_tokens or 0,
        "served_model": None,
        "vectors": arrays,
    }
