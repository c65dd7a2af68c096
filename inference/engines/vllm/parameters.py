"""The request parameters that vLLM honours."""

from collections.abc import Collection, Mapping
from typing import Any

from batchyard.endpoints import catalog
from batchyard.endpoints.bodies.messages import turns
from batchyard.endpoints.bodies.scoring import bare
from inference.engines.vllm.internals import VERSION

COMMON = frozenset({"model", "truncate_prompt_tokens", "truncation_side", "add_special_tokens"})
POOLED = COMMON | {"mm_processor_kwargs", "padding"}
SCORED = POOLED - {"add_special_tokens"} | {
    *("chat_template_kwargs", "instruction", "max_tokens_per_doc", "max_tokens_per_query", "use_activation"),
}
CHAT_TEMPLATE = frozenset({"add_generation_prompt", "chat_template_kwargs", "continue_final_message"})
# fmt: off
SAMPLING = COMMON | {
    "allowed_token_ids", "bad_words", "frequency_penalty", "ignore_eos", "include_stop_str_in_output", "length_penalty",
    "logit_bias", "logprobs", "max_tokens", "min_p", "min_tokens", "n", "presence_penalty", "prompt_logprobs",
    "repetition_detection", "repetition_penalty", "response_format", "return_token_ids",
    "return_tokens_as_token_ids", "seed",
    "skip_special_tokens", "spaces_between_special_tokens", "stop", "stop_token_ids", "structured_outputs",
    "temperature", "thinking_token_budget", "top_k", "top_p", "use_beam_search", "vllm_xargs", "echo",
}
AUDIO = frozenset({
    "model", "file_url", "language", "to_language", "prompt", "hotwords", "response_format", "temperature", "seed",
    "max_completion_tokens", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
    "use_beam_search", "n", "length_penalty", "include_stop_str_in_output", "vllm_xargs",
})
SUPPORTED = {
    catalog.CHAT.path: SAMPLING | {
        "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
        "reasoning_effort", "include_reasoning", "add_generation_prompt", "continue_final_message",
        "chat_template_kwargs", "documents", "mm_processor_kwargs",
    },
    catalog.COMPLETIONS.path: SAMPLING | {"prompt"},
    catalog.RESPONSES.path: frozenset({
        "chat_template_kwargs", "frequency_penalty", "ignore_eos", "include", "include_reasoning",
        "include_stop_str_in_output", "input", "instructions", "logit_bias", "max_output_tokens", "max_tool_calls",
        "min_p", "mm_processor_kwargs", "model", "parallel_tool_calls", "presence_penalty", "reasoning",
        "repetition_penalty", "seed", "skip_special_tokens", "stop", "stop_token_ids", "structured_outputs",
        "temperature", "text", "tool_choice", "tools", "top_k", "top_logprobs", "top_p", "truncation", "vllm_xargs",
    }),
    catalog.MESSAGES.path: frozenset({
        "chat_template_kwargs", "max_tokens", "messages", "model", "output_config", "stop_sequences", "system",
        "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p", "vllm_xargs",
    }),
    catalog.COUNT_TOKENS.path: frozenset({
        "chat_template_kwargs", "messages", "model", "output_config", "system", "thinking", "tool_choice", "tools",
    }),
    catalog.EMBEDDINGS.path: POOLED | CHAT_TEMPLATE | {
        "input", "messages", "dimensions", "encoding_format", "embed_dtype", "endianness",
    },
    catalog.SCORE.path: SCORED | {
        "queries", "documents", "items", "text_1", "text_2", "data_1", "data_2",
    },
    catalog.RERANK.path: SCORED | {"query", "documents", "top_n", "return_documents"},
    catalog.CLASSIFY.path: POOLED | CHAT_TEMPLATE | {"input", "messages", "use_activation"},
    catalog.POOLING.path: POOLED | CHAT_TEMPLATE | {
        "input", "messages", "use_activation", "task", "dimensions", "encoding_format", "embed_dtype", "endianness",
    },
    catalog.SYSTEMONE.path: frozenset({
        "model", "state", "questions", "instructions", "images", "audio", "videos", "chat_template_kwargs",
    }),
    catalog.GENERATIVE_SCORING.path: frozenset({
        "model", "query", "items", "label_token_ids", "apply_softmax", "item_first", "add_special_tokens",
    }),
    catalog.GENERATE.path: frozenset({"model", "token_ids", "sampling_params", "output_mode", "return_token_ids"}),
    catalog.TOKENIZE.path: CHAT_TEMPLATE | {
        "model", "prompt", "messages", "tools", "add_special_tokens", "return_token_strs",
    },
    catalog.DETOKENIZE.path: frozenset({"model", "tokens"}),
    catalog.TRANSCRIPTIONS.path: AUDIO,
    catalog.TRANSLATIONS.path: AUDIO,
}
# fmt: on
"""By endpoint. vLLM ignores parameters that it does not know, so all others are refused here. A test compares these
names with vLLM's schemas."""
_SINCE: Mapping[tuple[int, int], Mapping[str, Collection[str]]] = {
    (0, 31): {catalog.MESSAGES.path: {"thinking"}},
    (0, 32): {
        catalog.RESPONSES.path: {"min_p", "stop_token_ids"},
        catalog.COUNT_TOKENS.path: {"output_config", "thinking"},
        catalog.GENERATE.path: {"output_mode"},
        catalog.SYSTEMONE.path: SUPPORTED[catalog.SYSTEMONE.path],
    },
}
"""What vLLM has from a minor version on."""
for since, added in _SINCE.items():
    if since > VERSION:
        SUPPORTED |= {path: SUPPORTED[path].difference(names) for path, names in added.items()}
SUPPORTED = {path: names for path, names in SUPPORTED.items() if names}
CALLING = frozenset({catalog.CHAT.path, catalog.RESPONSES.path, catalog.MESSAGES.path, catalog.COUNT_TOKENS.path})
"""The endpoints on which vLLM refuses tools without a parser of tool calls."""


def unusable_tools(endpoint: str, body: Mapping[str, Any], able: bool) -> tuple[str, str] | None:
    """Return what vLLM refuses of tools; without a parser (`able`) it answers with texts only."""
    if endpoint not in CALLING:
        return None
    if endpoint == catalog.CHAT.path and body.get("tools") == []:
        message = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        return "body.tools", message
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind == "none":
        return None
    if not body.get("tools"):
        needless = kind is None or (kind == "auto" and endpoint == catalog.RESPONSES.path)
        return None if needless else ("body.tool_choice", "tool_choice needs tools to choose from; leave it out")
    if able:
        function = choice.get("function", choice) if isinstance(choice, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        functions = [tool.get("function", tool) for tool in body["tools"] if isinstance(tool, dict)]
        if name is None or any(isinstance(one, dict) and one.get("name") == name for one in functions):
            return None
        return "body.tool_choice", "The tool specified in `tool_choice` does not match any of the specified `tools`"
    return "body.tools", "tools need enable_auto_tool_choice and tool_call_parser in the model's engine_args"


def sent(endpoint: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body as vLLM takes it."""
    if endpoint == catalog.RESPONSES.path:  # vLLM keeps no responses, and refuses to compute one that nobody waits for
        return {**body, "background": False, "store": False}
    if endpoint in (catalog.MESSAGES.path, catalog.COUNT_TOKENS.path):
        return {**body, "messages": turns(body.get("messages"))}
    if endpoint == catalog.RERANK.path:
        texts = {name: bare(body[name]) for name in ("query", "documents") if name in body}
        return {name: value for name, value in body.items() if name != "return_documents"} | texts
    return dict(body)


def contradiction(body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return parameter and reason of what vLLM's schemas refuse first among values that each are valid."""
    count = body.get("prompt_logprobs")
    if type(count) is int and count < -1:
        return "body.prompt_logprobs", "`prompt_logprobs` must be a positive value or -1."
    outputs = body.get("structured_outputs")
    kinds = [
        name for name in ("json", "regex", "choice") if isinstance(outputs, dict) and outputs.get(name) is not None
    ]
    if len(kinds) > 1:
        message = "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
        return "body.structured_outputs", message
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        return "body.continue_final_message", message
    return None
