"""Rewards that compare the words of two texts: `f1`, `rouge-1`, `rouge-2`, `rouge-l` and `bleu`.

A ground truth may be a list of texts: the best of them counts, but for BLEU, which takes them all as references.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from rapidfuzz.distance import LCSseq

from batchyard.recipes import reward
from recipes.rewards import require_package
from recipes.rewards.comparing import GROUND_TRUTH

_WORD = re.compile(r"[^\W_]+")
ARTICLE = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def references(ground_truth: Any) -> list[str]:
    """Return the texts of a ground truth, which is one or a list of them."""
    return [str(text) for text in ground_truth] if isinstance(ground_truth, list | tuple) else [str(ground_truth)]


def f_measure(common: float, one: float, other: float) -> float:
    """Return the harmonic mean of the shares that `common` has of two sizes; 1 if both are empty."""
    return 2 * common / (one + other) if one + other else 1.0


def _best(answer: str, ground_truth: Any, similarity: Callable[[str, str], float]) -> float:
    return max((similarity(answer, reference) for reference in references(ground_truth)), default=0.0)


def plain_words(text: str) -> list[str]:
    """Return the words of a text without case, punctuation and articles, as SQuAD 1.1's evaluation script does."""
    return ARTICLE.sub(" ", text.lower().translate(NO_PUNCTUATION)).split()


def _shared(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    return f_measure((Counter(one) & Counter(other)).total(), len(one), len(other))


@reward("f1", columns=GROUND_TRUTH)
def f1(data_source: str, solution_str: str, ground_truth: Any, *_: Any) -> float:
    """F1 of the words, as SQuAD 1.1's evaluation script (Rajpurkar et al. 2016) counts them."""
    return _best(solution_str, ground_truth, lambda one, other: _shared(plain_words(one), plain_words(other)))


def _words(text: str) -> list[str]:
    """Return the words of a text as ROUGE counts them: letters and digits of any script, without stemming."""
    return _WORD.findall(text.lower())


def _rouge_n(answer: str, ground_truth: Any, size: int) -> float:
    def similarity(*texts: str) -> float:
        words = map(_words, texts)
        one, other = ([tuple(each[at : at + size]) for at in range(len(each) - size + 1)] for each in words)
        return _shared(one, other) if one and other else 0.0

    return _best(answer, ground_truth, similarity)


@reward("rouge-1", columns=GROUND_TRUTH)
def rouge_1(data_source: str, solution_str: str, ground_truth: Any, *_: Any) -> float:
    """F-measure of single words (Lin 2004, ROUGE-1)."""
    return _rouge_n(solution_str, ground_truth, 1)


@reward("rouge-2", columns=GROUND_TRUTH)
def rouge_2(data_source: str, solution_str: str, ground_truth: Any, *_: Any) -> float:
    """F-measure of pairs of neighbouring words (Lin 2004, ROUGE-2)."""
    return _rouge_n(solution_str, ground_truth, 2)


@reward("rouge-l", columns=GROUND_TRUTH)
def rouge_l(data_source: str, solution_str: str, ground_truth: Any, *_: Any) -> float:
    """F-measure of the longest common subsequence of words (Lin 2004, ROUGE-L)."""

    def similarity(one: str, other: str) -> float:
        left, right = _words(one), _words(other)
        return f_measure(LCSseq.similarity(left, right), len(left), len(right)) if left and right else 0.0

    return _best(solution_str, ground_truth, similarity)


@reward("bleu", columns=GROUND_TRUTH)
def bleu(data_source: str, solution_str: str, ground_truth: Any, *_: Any) -> float:
    """BLEU of the answer alone from 0 to 1, as sacreBLEU computes it for sentences (Papineni et al. 2002)."""
    require_package("bleu")
    from sacrebleu import sentence_bleu

    return float(sentence_bleu(solution_str, references(ground_truth)).score) / 100
