"""Rewards whose packages are not installed say what to install."""

from __future__ import annotations

import pytest

from batchyard import plugins
from batchyard.errors import ConfigurationError
from recipes.rewards import require_package
from tests.support.rewards import outcome


@pytest.mark.parametrize("reward", ["math", "bleu"])
def test_a_reward_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch, reward: str) -> None:
    monkeypatch.setattr(plugins, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=rf"pip install 'batchyard\[{reward}\]'"):
        outcome(reward, "1", "1")
    require_package("exact")
