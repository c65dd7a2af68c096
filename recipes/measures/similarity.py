"""Near-duplicates among texts: MinHash and locality-sensitive hashing find candidates, exact Jaccard decides.

Sources: A. Broder, On the resemblance and containment of documents (1997); J. Leskovec et al., Mining of Massive
Datasets, chapter 3. The signatures are rensa's, which depend on the text and a seed alone.
"""

import unicodedata

from rensa import RMinHash, RMinHashLSH

SHINGLE = 5
"""Characters of a shingle: words would not do for languages without spaces, or for short texts."""
PERMUTATIONS = 128
BANDS = 32
LEAST = 0.6
"""The least threshold. Texts as similar as this become candidates in 98.8 % of cases, at 0.8 in all but 4 of 10^8."""
_SEED = 42


def shingles(text: str) -> frozenset[str]:
    """Return the parts of a text that are compared, without regard to case, blanks and forms of characters."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return frozenset(plain[start : start + SHINGLE] for start in range(max(1, len(plain) - SHINGLE + 1)))


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the share of shingles that two texts have in common, of all that either has."""
    return len(one & other) / len(one | other)


class DistinctTexts:
    """Texts of which no two are as similar as `threshold`. The order of additions alone decides which are in."""

    def __init__(self, threshold: float) -> None:
        """Raises ValueError for a threshold below LEAST, at which similar texts would be missed."""
        if threshold < LEAST:
            raise ValueError(f"threshold {threshold} is below {LEAST}")
        self._threshold = threshold
        self._index = RMinHashLSH(threshold, PERMUTATIONS, BANDS)
        self._shingles: list[frozenset[str]] = []

    def add(self, text: str) -> int | None:
        """Take a text in, and return None; or return the number of the first text that it is a near-duplicate of."""
        parts = shingles(text)
        signature = RMinHash(num_perm=PERMUTATIONS, seed=_SEED)
        signature.update(sorted(parts))
        for number in sorted(self._index.query(signature)):
            if jaccard(parts, self._shingles[number]) >= self._threshold:
                return int(number)
        self._index.insert(len(self._shingles), signature)
        self._shingles.append(parts)
        return None
