"""Batched generation with a transformers model, each sample as if it were alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from batchyard.endpoints.bodies.sampling import SamplingParameters
from inference.engines.transformers.logprobs import TokenLogprob, token_logprobs

if TYPE_CHECKING:
    import torch
    from transformers import DynamicCache

LOGITS = 2**26
"""Logits that a step returns at most where those of the prompts' tokens are wanted: 256 MiB as float32."""


@dataclass
class GeneratedSample:
    """One sample of an answer, as far as it is generated."""

    prompt: list[int]  # token ids
    sampling: SamplingParameters
    limit: int  # maximum number of tokens
    source: torch.Generator
    tokens: list[int] = field(default_factory=list)  # generated token ids, with the end-of-sequence token
    text: str = ""  # `tokens` as text, without the stop string that ended it
    finish_reason: str | None = None  # stop, length or repetition; None: not finished in time
    stop: str | None = None  # the stop string that ended it, or vLLM's word for a repetition
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of each token, if its sampling wants them
    skip_special_tokens: bool = True  # leave special tokens out of `text`. The one that ends the sample is never in it.
    # How many of the most likely tokens are wanted beside each of the prompt's; None: nothing is
    prompt_top: int | None = None
    # Of each token of the prompt, if wanted; None for the first, which follows nothing
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)


class Decoder:
    """Generates with a causal language model and its tokenizer. `ends` are the end-of-sequence token ids."""

    def __init__(self, model: Any, tokenizer: Any, ends: frozenset[int]) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._ends = ends

    def generate(
        self, samples: list[GeneratedSample], seconds: float, cancelled: threading.Event, on_step: Callable[[], None]
    ) -> None:
        """Generate the samples until all are finished, `seconds` have passed or `cancelled` is set.

        Prompts are padded on the left and masked, and positions count from the first real token: padding changes
        nothing. `on_step` is called after each token.
        """
        import torch
        from transformers import DynamicCache

        deadline = time.monotonic() + seconds

        def is_over() -> bool:
            return time.monotonic() > deadline or cancelled.is_set()

        width = max(len(sample.prompt) for sample in samples)
        device = self._model.device
        inputs = torch.tensor([[0] * (width - len(s.prompt)) + s.prompt for s in samples], device=device)
        mask = torch.tensor([[0] * (width - len(s.prompt)) + [1] * len(s.prompt) for s in samples], device=device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        cache = DynamicCache(config=self._model.config)
        running = list(samples)
        with torch.inference_mode():
            if any(sample.prompt_top is not None for sample in samples):
                for _ in self._read(samples, inputs, mask, positions, cache):
                    on_step()
                    if is_over():
                        return
                inputs, positions = inputs[:, -1:], positions[:, -1:]
            while True:
                logits = self._model(
                    input_ids=inputs,
                    attention_mask=mask,
                    position_ids=positions,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                ).logits[:, -1]
                self._extend(running, logits.float().cpu())
                on_step()
                alive = [index for index, sample in enumerate(running) if sample.finish_reason is None]
                if not alive or is_over():
                    return
                if len(alive) <= len(running) * 3 // 4:
                    rows = torch.tensor(alive, device=device)
                    cache.batch_select_indices(rows)
                    mask, positions = mask[rows], positions[rows]
                    running = [running[index] for index in alive]
                inputs = torch.tensor([[sample.tokens[-1]] for sample in running], device=device)
                mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=-1)
                positions = positions[:, -1:] + 1

    def _read(
        self,
        samples: list[GeneratedSample],
        inputs: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        cache: DynamicCache,
    ) -> Iterator[None]:
        """Read all columns of `inputs` (samples, tokens) but the last into the cache; yield after each step.

        Each sample that wants them gets the log-probabilities of its prompt. Columns go in pieces, so that the logits
        of a long prompt do not fill the memory.
        """
        rows, width = len(samples), max(len(sample.prompt) for sample in samples)
        vocabulary = self._model.get_input_embeddings().weight.shape[0]
        piece = max(1, LOGITS // (rows * vocabulary))
        for sample in samples:
            sample.prompt_logprobs = [] if sample.prompt_top is None else [None]
        for start in range(0, width - 1, piece):
            end = min(start + piece, width - 1)
            logits = self._model(
                input_ids=inputs[:, start:end],
                attention_mask=mask[:, :end],
                position_ids=positions[:, start:end],
                past_key_values=cache,
                use_cache=True,
            ).logits
            for row, sample in enumerate(samples):
                # The logits of a column are those of the token in the next one.
                first = max(start, width - len(sample.prompt))
                if sample.prompt_top is not None and first < end:
                    tokens = inputs[row, first + 1 : end + 1].tolist()
                    own = logits[row, first - start :]
                    sample.prompt_logprobs += token_logprobs(own, tokens, sample.prompt_top)
            yield

    def _extend(self, samples: list[GeneratedSample], logits: torch.Tensor) -> None:
        """Add one token to each unfinished sample; `logits` is (samples, vocabulary) on the CPU."""
        import torch

        best = logits.argmax(-1).tolist()
        for sample, row, token in zip(samples, logits, best, strict=True):
            if sample.finish_reason is not None:
                continue
            early = len(sample.tokens) < sample.sampling.min_tokens
            if early or not sample.sampling.plain:
                allowed = penalise(row, sample.sampling, sample.prompt, sample.tokens)
                if early:
                    allowed = allowed.index_fill(-1, torch.tensor(sorted(self._ends), dtype=torch.long), float("-inf"))
                token = choose(allowed, sample.sampling, sample.source)
            sample.tokens.append(token)
            if sample.sampling.logprobs:
                sample.logprobs += token_logprobs(row.unsqueeze(0), [token], sample.sampling.top_logprobs)
            self._finish(sample)

    def _finish(self, sample: GeneratedSample) -> None:
        """Set `finish_reason` and `text` if the last token ends the sample."""
        ended = sample.tokens[-1] in self._ends and not sample.sampling.ignore_eos
        full = len(sample.tokens) >= sample.limit
        detection = sample.sampling.repetition_detection
        early = len(sample.tokens) < sample.sampling.min_tokens
        looped = detection is not None and not early and detection.found(sample.tokens)
        if not (ended or full or looped or sample.sampling.stop):
            return
        tokens = sample.tokens[:-1] if ended else sample.tokens
        text = self._tokenizer.decode(tokens, skip_special_tokens=sample.skip_special_tokens)
        # Only the last token can complete a stop string: an earlier one has ended the sample.
        cuts = [(text.find(stop), stop) for stop in sample.sampling.stop if stop in text]
        if cuts and len(sample.tokens) > sample.sampling.min_tokens:
            cut, sample.stop = min(cuts)
            sample.text, sample.finish_reason = text[:cut], "stop"
        elif ended:
            sample.text, sample.finish_reason = text, "stop"
        elif full:
            sample.text, sample.finish_reason = text, "length"
        elif looped:
            sample.text, sample.finish_reason, sample.stop = text, "repetition", "repetition_detected"


def generator(seed: int | None, sample: int) -> torch.Generator:
    """Return a source of randomness for one sample. Nothing else in its batch can change it."""
    import torch

    source = torch.Generator()
    if seed is None:
        source.seed()
    else:
        source.manual_seed((seed + sample) % 2**64)
    return source


def penalise(logits: torch.Tensor, sampling: SamplingParameters, prompt: list[int], output: list[int]) -> torch.Tensor:
    """Apply the penalties to `logits` (vocabulary,): repetition over prompt and output, the others over output.

    Repetition: arXiv 1909.05858; presence and frequency: OpenAI's API reference.
    """
    import torch

    if not sampling.penalised:
        return logits
    logits = logits.clone()
    if sampling.repetition_penalty != 1:
        context = torch.tensor(prompt + output, dtype=torch.long).unique()
        values = logits[context]
        penalty = sampling.repetition_penalty
        logits[context] = torch.where(values > 0, values / penalty, values * penalty)
    if output:
        tokens, counts = torch.tensor(output, dtype=torch.long).unique(return_counts=True)
        logits[tokens] -= sampling.frequency_penalty * counts + sampling.presence_penalty
    return logits


def choose(logits: torch.Tensor, sampling: SamplingParameters, source: torch.Generator) -> int:
    """Sample the next token from penalised `logits` (vocabulary,): temperature, then min_p, top_k, top_p."""
    import torch

    if sampling.greedy:
        return int(logits.argmax())
    logits = logits / sampling.temperature
    if sampling.min_p > 0:
        probabilities = logits.softmax(-1)
        logits = logits.masked_fill(probabilities < sampling.min_p * probabilities.max(), float("-inf"))
    if 0 < sampling.top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k).values[-1], float("-inf"))
    if sampling.top_p < 1:
        ordered, order = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        logits = logits.index_fill(-1, order[before >= sampling.top_p], float("-inf"))
    return int(torch.multinomial(logits.softmax(-1), 1, generator=source))
