"""One small Ray cluster and one tiny model for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  as `up` has it: other tests' processes starve the engines

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """A Ray cluster of two CPUs, this process its driver; its address."""
    import ray
    from ray._private.node import Node

    from inference.residents import directory

    folder = tempfile.mkdtemp(prefix="by", dir="/tmp")  # Unix sockets below it: the path has to be short
    with pytest.MonkeyPatch.context() as patch:
        # The head of a local stack has none of these, and they take seconds of CPU.
        for server in ("start_api_server", "start_log_monitor", "start_monitor"):
            patch.setattr(Node, server, lambda *_arguments, **_options: None)
        context = ray.init(
            num_cpus=2,
            include_dashboard=False,
            _temp_dir=folder,
            namespace="batchyard",
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=200 * 1024 * 1024,
        )
    yield context.address_info["address"]
    directory.stop_all()
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a causal language model of a few thousand parameters, random but sharp, and its tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([__doc__ or ""], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(7)
    config = Qwen2Config(
        vocab_size=len(fast),
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        eos_token_id=fast.eos_token_id,
        bos_token_id=None,
        pad_token_id=fast.pad_token_id,
    )
    Qwen2ForCausalLM(config).float().save_pretrained(folder)
    return folder
