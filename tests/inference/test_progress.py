"""The progress of a request."""

from __future__ import annotations

import time

from inference.progress import RequestProgress


def test_the_first_token_and_the_gaps_after_it_are_told_apart() -> None:
    first: list[float] = []
    gaps: list[tuple[float, int]] = []
    progress = RequestProgress(on_first=first.append, on_gap=lambda seconds, tokens: gaps.append((seconds, tokens)))
    progress.began_at = time.monotonic() - 10
    for tokens in (1, 0, 4):
        progress.add(tokens)
    assert progress.output_tokens == 5
    assert len(first) == 1 and first[0] >= 10
    assert len(gaps) == 1 and gaps[0][1] == 4 and gaps[0][0] < 10
