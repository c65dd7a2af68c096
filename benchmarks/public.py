"""Requests made to the shape of public workloads: no data is shipped or downloaded, the texts are words of no meaning.

The shape is what published statistics say of requests, sharing and lengths. Lengths are scaled down for two CPUs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from harness import Body, chat, words

Requests = Callable[[], list[Body]]
WORDS_A_TOKEN = 0.38
"""The benchmarks' tokenizer takes 2.6 tokens for one of their words."""


def lognormal(chance: random.Random, mean: float, cv: float, most: int) -> int:
    """Return a length of this mean and coefficient of variation, at least 1 and at most `most`, which lowers both."""
    variance = math.log(1 + cv**2)
    return min(most, max(1, round(chance.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance)))))


def text(tokens: float, seed: int) -> str:
    return words(max(1, round(tokens * WORDS_A_TOKEN)), seed)


def _sessions(
    number: int, turns: Sequence[int], first: tuple[float, float], later: float, answer: tuple[float, float], seed: int
) -> list[Body]:
    """Whole sessions, their requests interleaved as they arrive. A request holds its session's turns so far.

    Args:
        turns: how many sessions of a sample have 1, 2, 3, … turns.
        first: mean and coefficient of variation of the tokens of a session's first message.
        later: mean tokens of a message and an answer that a turn adds.
        answer: mean and coefficient of variation of the tokens of an answer.
    """
    chance = random.Random(seed)
    arrivals: list[tuple[float, Body]] = []
    for session in range(number):
        at = chance.random()
        (count,) = chance.choices(range(1, len(turns) + 1), turns)
        messages: list[dict[str, Any]] = [{"role": "system", "content": text(16, 0)}]
        tokens = 0
        for turn in range(count):
            added = lognormal(chance, *(first if turn == 0 else (later, 1.0)), most=1400)
            tokens += added
            if tokens > 1600:  # the model's context
                break
            messages.append({"role": "user", "content": f"{session} {turn} {text(added, chance.getrandbits(32))}"})
            most = lognormal(chance, *answer, most=100)
            body = {"messages": list(messages), "max_tokens": most, "temperature": 0, "ignore_eos": True}
            arrivals.append((at, body))
            messages.append({"role": "assistant", "content": text(most, chance.getrandbits(32))})
            at += chance.random() / 4
    return [body for _, body in sorted(arrivals, key=lambda arrival: arrival[0])]


def conversations() -> list[Body]:
    """Made to the shape of Mooncake's trace `conversation` (FAST 2025; kvcache-ai/Mooncake, FAST25-release/traces).

    12,031 requests of 12,035 tokens on average (coefficient of variation 1.31) with answers of 343 (0.73), in 7,373
    sessions that all begin with the same 512 tokens; 37 % of the blocks were seen before. Here: 1/32 of the lengths.
    """
    return _sessions(80, (5114, 1311, 464, 200, 117, 55, 27, 26), (300, 1.3), 110, (10.7, 0.73), 11)


def synthetic_sessions() -> list[Body]:
    """Made to the shape of Mooncake's trace `synthetic` (as above).

    3,993 requests of 15,325 tokens on average (1.20) with answers of 149 (1.19), in 1,138 sessions; 64 % of the blocks
    were seen before. Here: 1/32 of the lengths.
    """
    return _sessions(36, (753, 56, 64, 59, 45, 55, 32, 25, 14, 7), (420, 0.8), 60, (4.7, 1.19), 12)


def few_shot_evaluation() -> list[Body]:
    """Made to the shape of BIG-Bench Hard (Suzgun et al. 2022): 27 tasks with 3 examples each, short answers.

    The tasks' questions are in no order, as in a file that is sorted by length. Lengths are assumed: 300 tokens of
    examples, a question of 50, an answer of 6.
    """
    chance = random.Random(13)
    bodies = [
        chat(f"Task {task}. {text(300, task)}\nQ: {number} {text(50, chance.getrandbits(32))}\nA:", 6)
        for task in range(27)
        for number in range(9)
    ]
    chance.shuffle(bodies)
    return bodies


def table_labels() -> list[Body]:
    """Made to the shape of Banking77 (Casanueva et al. 2020): each row of a table is given one of 77 labels.

    The labels, about 300 tokens, stand in each prompt; a row has 12 words on average; an answer is a label of 4 tokens.
    """
    chance = random.Random(14)
    labels = f"Label the row with one of these: {text(300, 77)}."
    return [
        chat(f"Row {row}: {words(lognormal(chance, 12, 0.6, 80), chance.getrandbits(32))}", 4, labels)
        for row in range(400)
    ]


def samples() -> list[Body]:
    """Made to the shape of GSM8K (Cobbe et al. 2021) with 8 samples of each answer, as for a majority vote.

    Questions of about 60 tokens without examples, answers of about 100. Here: 1/4 of the answers' lengths.
    """
    chance = random.Random(15)
    return [
        {
            **chat(f"{index}. {text(lognormal(chance, 60, 0.4, 300), index)}", lognormal(chance, 25, 0.5, 100)),
            "n": 8,
            "temperature": 1.0,  # without a seed: with one, vLLM's engine dies on a CPU that computes a prompt in parts
        }
        for index in range(40)
    ]


def single_turn_chat() -> list[Body]:
    """Made to the shape of LMSYS-Chat-1M (Zheng et al. 2024): prompts of 69.5 tokens on average, answers of 214.5.

    Here: 1/6 of the answers' lengths. The coefficient of variation, 1, is assumed.
    """
    chance = random.Random(16)
    return [
        chat(f"{index} {text(lognormal(chance, 69.5, 1.0, 800), index)}", lognormal(chance, 36, 1.0, 300))
        for index in range(240)
    ]


def code_completion() -> list[Body]:
    """Made to the shape of HumanEval (Chen et al. 2021): 164 functions to complete from signature and docstring.

    Lengths are assumed: prompts of 130 tokens, answers of 60, half of which here.
    """
    chance = random.Random(17)
    return [
        chat(f"def f{index}: {text(lognormal(chance, 130, 0.5, 500), index)}", lognormal(chance, 30, 0.7, 150))
        for index in range(164)
    ]


def tail(number: int, cv: float, seed: int = 18) -> list[Body]:
    """Short requests with answers of lognormal lengths, of 45 tokens on average and at most 400."""
    chance = random.Random(seed)
    return [chat(f"{seed} {index}: {words(12, index)}", lognormal(chance, 45, cv, 400)) for index in range(number)]


def tail_unknown(number: int, vocabulary: Sequence[int]) -> list[Body]:
    """Short requests whose answers end at a random 1/64 of the vocabulary, so that nobody can know their lengths."""
    ends = sorted(random.Random(19).sample(list(vocabulary), len(vocabulary) // 64))
    return [{**chat(f"{index}: {words(12, index)}", 400), "stop_token_ids": ends} for index in range(number)]
