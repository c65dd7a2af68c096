"""Which part of vLLM's server answers each endpoint, with requests as its schemas and its errors as answers."""

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from batchyard.endpoints import catalog
from batchyard.endpoints.base import Endpoint
from batchyard.schema_words import invalid_values
from inference.engine import EngineAnswer, refusal_code
from inference.engines.vllm import internals


class Handler(NamedTuple):
    """The schema of an endpoint's requests, and what answers one and its HTTP request, here None."""

    schema: Any
    answer: Callable[[Any, None], Coroutine[Any, Any, Any]]


class _Place(NamedTuple):
    """The schema of requests (internals.NAMES), and where vLLM keeps their handler: an attribute of its server's state.

    A model that cannot do it has None there. Without a `method`, the object itself is called.
    """

    schema: str
    attribute: str
    method: str = "__call__"


_PLACES = {
    catalog.CHAT: _Place("ChatCompletionRequest", "openai_serving_chat", "create_chat_completion"),
    catalog.COMPLETIONS: _Place("CompletionRequest", "openai_serving_completion", "create_completion"),
    catalog.RESPONSES: _Place("ResponsesRequest", "openai_serving_responses", "create_responses"),
    catalog.MESSAGES: _Place("AnthropicMessagesRequest", "anthropic_serving_messages", "create_messages"),
    catalog.COUNT_TOKENS: _Place("AnthropicCountTokensRequest", "anthropic_serving_messages", "count_tokens"),
    catalog.EMBEDDINGS: _Place("EmbeddingRequest", "serving_embedding"),
    catalog.SCORE: _Place("ScoreRequest", "serving_scores"),
    catalog.RERANK: _Place("RerankRequest", "serving_scores"),
    catalog.CLASSIFY: _Place("ClassificationRequest", "serving_classification"),
    catalog.POOLING: _Place("PoolingRequest", "serving_pooling"),
    catalog.SYSTEMONE: _Place("StructuredDecisionRequest", "serving_structured_decisions", "create_decision"),
    catalog.GENERATIVE_SCORING: _Place(
        "GenerativeScoringRequest", "serving_generative_scoring", "create_generative_scoring"
    ),
    catalog.GENERATE: _Place("GenerateRequest", "serving_tokens", "serve_tokens"),
    catalog.TOKENIZE: _Place("TokenizeRequest", "serving_tokenization", "create_tokenize"),
    catalog.DETOKENIZE: _Place("DetokenizeRequest", "serving_tokenization", "create_detokenize"),
}


_AUDIO = {
    catalog.TRANSCRIPTIONS: _Place("BatchTranscriptionRequest", "openai_serving_transcription", "create_transcription"),
    catalog.TRANSLATIONS: _Place("BatchTranslationRequest", "openai_serving_translation", "create_translation"),
}


def handlers(state: Any, media_domains: Sequence[str]) -> Mapping[str, Handler]:
    """Return by path the handlers of vLLM's server that its model can do. Audio comes from `media_domains`."""
    able = {
        endpoint: Handler(getattr(internals, place.schema), getattr(getattr(state, place.attribute), place.method))
        for endpoint, place in (_PLACES | _AUDIO).items()
        if getattr(state, place.attribute, None) is not None
    }
    return {
        endpoint.path: _of_url(endpoint, handler, media_domains) if endpoint in _AUDIO else handler
        for endpoint, handler in able.items()
    }


def _of_url(endpoint: Endpoint, handler: Handler, media_domains: Sequence[str]) -> Handler:
    """Return a handler of requests that name their audio by a URL, as those of `vllm run-batch` do."""
    wrap = internals.make_transcription_wrapper(endpoint is catalog.TRANSLATIONS, list(media_domains))
    run = wrap(handler.answer)

    async def answer(request: Any, _: None) -> Any:
        return await run(request)

    return Handler(handler.schema, answer)


def parse(schema: Any, body: dict[str, Any]) -> Any:
    """Return the body as a request of vLLM's `schema`, or the EngineAnswer that refuses it."""
    try:
        return _validator(schema).validate_python(body)
    except ValidationError as error:
        first = invalid_values(error, body)[0]
        return EngineAnswer.refused(str(first), param=first.place or None, code="invalid_value")
    except Exception as error:  # noqa: BLE001  vLLM's validators raise its own errors, and any that a value causes
        return refusal(internals.create_error_response(error))


def refusal(response: Any) -> EngineAnswer:
    """Return vLLM's error response as OpenAI's error body."""
    error = response.error
    return EngineAnswer.refused(
        error.message, param=error.param, code=refusal_code(error.message), status=int(error.code)
    )


_validator: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)
