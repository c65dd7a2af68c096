"""A histogram keeps quantiles within its relative error, however the values were split."""

from __future__ import annotations

import itertools
import json
import math

from hypothesis import given
from hypothesis import strategies as st

from batchyard.comparing import histogram

SECONDS = st.floats(min_value=histogram.LEAST, max_value=1e6)


@given(st.lists(st.lists(SECONDS), min_size=1).filter(any), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_quantiles_of_merged_histograms_are_those_of_all_values(lists: list[list[float]], share: float) -> None:
    stored = [json.loads(json.dumps(histogram.of(values))) for values in lists]
    exact = sorted(itertools.chain.from_iterable(lists))
    expected = exact[math.ceil(share * len(exact)) - 1]
    (quantile,) = histogram.quantiles(histogram.merged(stored), [share])
    assert math.isclose(quantile, expected, rel_tol=0.02)


def test_a_value_that_no_clock_could_measure_counts_as_the_least() -> None:
    assert histogram.of([0.0, histogram.LEAST]) == dict.fromkeys(histogram.of([histogram.LEAST]), 2)


def test_a_histogram_of_no_values_is_empty() -> None:
    assert histogram.merged([histogram.of([]), {}]) == {}
