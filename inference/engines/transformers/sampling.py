"""Choice of the next token of one sample, in vLLM's order: penalties, temperature, min_p, top_k, top_p."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchyard.endpoints.bodies.sampling import SamplingParameters

if TYPE_CHECKING:
    import torch


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
