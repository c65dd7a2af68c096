"""Every rule of the table knows the texts that it is for, and says what to do; no rule takes another's."""

from __future__ import annotations

import pytest

from batchyard.failures.causes import CAUSES, SYMPTOMS, find
from batchyard.failures.reasons import MAX_CAUSE, REMEDY, cause_of, explained

TEXTS = [
    ("unknown argument", "engine_args.max_seqs: vLLM has no such argument; did you mean max_num_seqs?"),
    ("unexpected argument", "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'max_seqs'"),
    ("command", "before it could be asked, the server's program sglang cannot be started"),
    ("other model", "the server of another model: it lists Qwen/Qwen3-8B, another, not qwen"),
    (
        "server not ready",
        "engine server of model m did not start within 600 seconds, and was not ready yet: "
        "GET /health is answered with HTTP 503 Service Unavailable",
    ),
    ("server ended", "the server ended with exit code 3: it begins | out of ideas"),
    ("few batched tokens", "max_num_batched_tokens (128) must be greater than or equal to max_num_seqs (256)."),
    ("few batched tokens", "max_num_batched_tokens (128) is smaller than max_model_len (512)."),
    (
        "long context",
        "ValidationError: 1 validation error for ModelConfig Value error, User-specified max_model_len (100000) is "
        "greater than the derived max_model_len (max_position_embeddings=2048 or model_max_length=None).",
    ),
    (
        "architecture",
        "ValidationError: 1 validation error for ModelConfig Value error, Model architectures "
        "['LlavaForConditionalGeneration'] failed to be inspected. Please check the logs for more details.",
    ),
    ("argument", "ValidationError: 1 validation error for SchedulerConfig max_num_seqs Input should be greater than 0"),
    (
        "chat template",
        "ValueError: As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat "
        "template if the tokenizer does not define one.",
    ),
    (
        "chat template",
        "Cannot use chat template functions because tokenizer.chat_template is not set and no template argument was "
        "passed!",
    ),
    ("tokenizer", "OSError: Can't load tokenizer for './model'. If you were trying to load it from a hub, …"),
    ("tokenizer", "ValueError: Couldn't instantiate the backend tokenizer from one of: (1) a `tokenizers` file"),
    ("gated model", "OSError: You are trying to access a gated repo. Make sure to have access to it at https://hub/x."),
    (
        "missing model",
        "OSError: ./no-model is not a local folder and is not a valid model identifier listed on 'https://hub/models'",
    ),
    ("missing model", "LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder"),
    ("missing model", "OSError: We couldn't connect to 'https://hub' to load the files, and couldn't find them"),
    ("missing model", "FileNotFoundError: [Errno 2] No such file or directory: './model/config.json'"),
    ("kernel", "AcceleratorError: CUDA error: no kernel image is available for execution on the device"),
    (
        "kernel",
        "ImportError: /venv/vllm/_C.abi3.so: undefined symbol: _ZN3c106detail14torchCheckFail",
    ),
    (
        "context that fits",
        "ValueError: To serve at least one request with the model's max seq len (32768), (3.5 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (1.0 GiB). Based on the available memory, the estimated "
        "maximum model length is 9344. Try increasing `gpu_memory_utilization` (which also controls CPU memory on the "
        "CPU backend) or decreasing `max_model_len` when initializing the engine.",
    ),
    (
        "share of the device",
        "ValueError: Free memory on device cuda:0 (31.5/79.1 GiB) on startup is less than desired GPU memory "
        "utilization (0.92, 72.77 GiB).",
    ),
    ("cache", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."),
    ("memory of the GPU", "OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB."),
    (
        "killed by somebody",
        "vLLM's engine process was ended by SIGKILL (2 s before, its processes had 1.2 GiB and 9 of 23 GiB were free; "
        "the kernel ended no process for want of memory)",
    ),
    ("killed", "vLLM's engine process was ended by SIGKILL"),
    ("killed", "Engine core initialization failed. Failed core proc(s): exit code -9"),
    (
        "memory",
        "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 40 bytes. Error code 12",
    ),
    ("memory", "OSError: [Errno 12] Cannot allocate memory"),
    ("memory", "Ray ended the engine's process, since the node was running low on memory"),
    ("disk", "OSError: [Errno 28] No space left on device"),
    ("port", "OSError: [Errno 98] Address already in use"),
    ("port", "ZMQError: Address already in use (addr='tcp://127.0.0.1:5000')"),
    ("instruction", "vLLM's engine process was ended by SIGILL"),
    ("device", "AcceleratorError: CUDA error: an illegal memory access was encountered"),
    ("device", "RuntimeError: NCCL error: unhandled system error"),
    ("abort", "vLLM's engine process was ended by SIGSEGV"),
    ("abort", "vLLM's engine process was ended by SIGBUS"),
    ("abort", "vLLM's engine process was ended by SIGABRT: free(): invalid pointer"),
    ("module", "AttributeError: '_OpNamespace' '_C' object has no attribute 'init_cpu_memory_env'"),
    ("module", "ModuleNotFoundError: No module named 'flash_attn'"),
    ("module", "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"),
    ("module", "ImportError: cannot import name 'Mapping' from 'collections'"),
    ("module", "ImportError: vLLM is not installed here"),
    ("slow start", "engine vllm of model mini did not start within 900 seconds"),
    ("slow request", "the engine answered nothing for 630 seconds and was killed"),
    ("no GPU free", "model mini waits for a GPU: engines of nano are at work on them"),
    ("cluster", "no Ray cluster at ray://head:10001: ConnectionError"),
    ("cluster", "the node of the engine's process has died"),
    ("process", "the process of the engine's actor ended without a word: it was killed, or it crashed"),
]


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_a_text_is_known_by_its_rule_and_by_it_again_in_the_reason_that_people_read(name: str, text: str) -> None:
    known = find(text)
    assert known is not None and known.rule.name == name
    reason = explained(text)
    assert len(reason) <= 600 and "\n" not in reason and len(cause_of(reason)) <= MAX_CAUSE
    if known.rule.remedy:
        assert reason.endswith(REMEDY + known.remedy) and "{" not in known.remedy
    again = find(cause_of(reason))
    assert again is not None and (again.rule.name, again.remedy) == (name, known.remedy)


def test_every_rule_has_a_text() -> None:
    assert {rule.name for rule in (*CAUSES, *SYMPTOMS)} == {name for name, _ in TEXTS}
    for rule in (*CAUSES, *SYMPTOMS):
        assert any((known := find(text)) is not None and known.rule is rule for _, text in TEXTS), rule.pattern


def test_a_text_that_no_rule_knows_has_no_remedy() -> None:
    assert find("RuntimeError: the tokenizer's merges are odd") is None
    assert explained("RuntimeError: the tokenizer's merges are odd") == "RuntimeError: the tokenizer's merges are odd"
