"""A light campaign of kills over exports."""

import pytest

from tests.chaos import exports


@pytest.mark.stack
@pytest.mark.exhaustive
def test_exports_that_are_killed_have_each_row_once_and_are_seen_whole() -> None:
    campaign = exports.run(rows=45_000, kills=4, gap=0.3)
    assert campaign.wrong == []
    assert sum(target.kills.total() for target in campaign.targets.values()) >= 3
