"""The request parameters that vLLM honours."""

from __future__ import annotations

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
"""By endpoint. vLLM ignores parameters that it does not know, so all others are refused here. A test compares these
names with vLLM's schemas."""
