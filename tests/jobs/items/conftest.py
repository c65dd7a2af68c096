"""A job with what its items have been asked and answered, for the tests of this folder."""

from __future__ import annotations

import pytest

from tasks.context import AppContext
from tests.support.written_jobs import Written


@pytest.fixture
def written(context: AppContext, project: str) -> Written:
    return Written(context, project)
