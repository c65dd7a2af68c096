"""One segment watches the Ray cluster on behalf of all in its process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tasks.execution import cluster_watch
from tests.support.rows import until


def test_one_segment_looks_for_the_cluster_on_behalf_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []
    monkeypatch.setattr(cluster_watch, "CHECK_SECONDS", 600.0)  # all below ask within it
    monkeypatch.setattr(cluster_watch, "ray_is_away", lambda: bool(looks.append(True)) or True)
    watch = cluster_watch.ClusterWatch()
    with ThreadPoolExecutor(8) as threads:
        assert not any(threads.map(lambda _: watch.lost(), range(64)))
    assert len(looks) == 1
    monkeypatch.setattr(cluster_watch, "CHECK_SECONDS", 0.0)
    until(watch.lost)
    assert len(looks) == cluster_watch.CHECKS
