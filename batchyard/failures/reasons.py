"""The reason of a failure in one line: cause, memory there was, and remedy."""

import re

from batchyard.failures.causes import OF_MEMORY, find
from batchyard.wording import cut

MAX_CAUSE = 300
"""Characters of a cause in a reason: whole sentences of it."""
REMEDY = ". Remedy: "
_SENTENCES = re.compile(r"(?<=[.;!?]) ")
_NOISE = re.compile(
    r" ?\[type=\w+(?:, input_value=.*?, input_type=[\w.]+)?\]|\s*For further information visit \S+", re.DOTALL
)
"""Pydantic's repetition of the input, and its link."""
_GENERIC = re.compile(r"There are some potential root causes\..*", re.DOTALL)
"""Ray's list of what may end a process. It names the out-of-memory killer whatever it was."""


def cause_of(reason: str) -> str:
    """Return a text without remedies of `explained`, and without Ray's list of what may end a process."""
    return without_guesses("\n".join(line.partition(REMEDY)[0] for line in reason.split("\n")))


def without_guesses(text: str) -> str:
    """Return a text without Ray's list of what may end a process."""
    return _GENERIC.sub("", text)


def one_line(text: str) -> str:
    """Return the text on one line, without what pydantic adds."""
    return " ".join(_NOISE.sub("", text).split())


def explained(cause: str, memory: str = "") -> str:
    """Return the reason of a failure, on one line: the cause, what memory there was, and the remedy."""
    if REMEDY in cause:
        return cause
    text = one_line(cause)
    known = find(f"{text} ({memory})" if memory else text)
    whole = _whole_sentences(text, known.match.span() if known else (0, 0))
    reason = f"{whole.rstrip('.')} ({memory})" if memory else whole
    return f"{reason.rstrip('.')}{REMEDY}{known.remedy}" if known and known.rule.remedy else reason


def concerns_memory(cause: str) -> bool:
    """True if memory may be the cause."""
    known = find(cause)
    return known is not None and known.rule.category in OF_MEMORY


def _whole_sentences(text: str, span: tuple[int, int]) -> str:
    """Return the first sentences that fit into MAX_CAUSE; those around `span` if it is not in them."""
    if len(text) <= MAX_CAUSE:
        return text
    ends = [match.start() for match in _SENTENCES.finditer(text)] + [len(text)]
    first = max((end for end in ends if end <= MAX_CAUSE), default=0)
    if first and span[1] <= first:
        return text[:first]
    begins = [0, *(end + 1 for end in ends[:-1])]
    begin = max(place for place in begins if place <= span[0])
    end = min(place for place in ends if place >= span[1])
    return text[begin:end] if end - begin <= MAX_CAUSE else cut(text[begin:], max(MAX_CAUSE, span[1] - begin + 3))
