"""The example models' tokenizer: byte-level BPE in which the tasks' own words are whole tokens.

There are no partial merges: a piece of text is one token if it is a word of the tasks, and is spelled byte by byte
otherwise. So digits are always single tokens, and so are the letters of a quoted word that is to be reversed.
"""

from problems import frame_texts
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, END, SYSTEM, USER, ASSISTANT = SPECIAL = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")

PIECES = r"\d| ?\p{L}+| ?[^\s\p{L}\d]+|\s"

# A role is one token; `developer` is OpenAI's newer name for `system`, any other role speaks as the user.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role in ('system', 'developer') -%}<|system|>
{%- elif message.role == 'assistant' -%}<|assistant|>
{%- else -%}<|user|>
{%- endif -%}
{%- if message.content is string -%}{{ message.content }}
{%- else -%}{%- for part in message.content or [] -%}{{ part.text }}{%- endfor -%}
{%- endif -%}<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""


def make_tokenizer(context: int) -> PreTrainedTokenizerFast:
    """A tokenizer over 256 bytes, the words of the tasks and the special tokens; `context` in tokens."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words = {piece for text in frame_texts() for piece, _ in split.pre_tokenize_str(text)}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [*SPECIAL, *alphabet, *sorted(words.difference(alphabet))]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=[], ignore_merges=True)
    )
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
