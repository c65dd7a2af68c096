"""Models for benchmarks, created on the spot: random weights of a real architecture, a tokenizer trained on our text.

The cost of a model depends on its size, not on its training. Weights are drawn so that the best token stands out:
greedy answers then do not depend on how requests were batched.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
VOCABULARY = 2048


@dataclass(frozen=True)
class Size:
    """A Qwen2 model's dimensions."""

    layers: int
    width: int
    heads: int
    context: int = 2048

    def cache_bytes(self, tokens: int) -> int:
        """The size of the KV cache for so many tokens, in float32."""
        return tokens * self.layers * 2 * 2 * (self.width // self.heads) * 4


SIZES = {
    "1M": Size(layers=2, width=128, heads=4),
    "40M": Size(layers=8, width=512, heads=8),
    "300M": Size(layers=24, width=896, heads=14),
}


def make(name: str, folder: Path) -> int:
    """Write the model of this size into `folder`, and return its number of parameters."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    size = SIZES[name]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train([str(file) for file in sorted((ROOT / "docs").glob("*.md"))], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[0], pad_token=SPECIAL[0])
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(7)
    config = Qwen2Config(
        vocab_size=len(fast),
        hidden_size=size.width,
        intermediate_size=size.width * 5,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=2,
        max_position_embeddings=size.context,
        initializer_range=0.3 if size.layers < 8 else 0.1,
        eos_token_id=fast.eos_token_id,
        bos_token_id=None,
        pad_token_id=fast.pad_token_id,
    )
    model = Qwen2ForCausalLM(config).float()
    model.save_pretrained(folder)
    return int(model.num_parameters())
