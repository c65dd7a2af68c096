"""Changes of a batch: a window counts from the creation, whenever it is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import update

from batchyard.errors import RequestError
from store.keys import Principal
from store.records import Batch
from tasks.context import AppContext
from tasks.intake import changes
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite


@pytest.fixture
def change(context: AppContext, project: str, new_batch: Callable[..., Batch]) -> Callable[..., Batch]:
    """Makes a batch that was created so many seconds ago, and changes it."""
    owner = Principal(project, False, "key_1", "laptop")

    def make(ago: int = 3600, **values: Any) -> Batch:
        batch = new_batch(1, window="24h")
        with context.database.write() as session:
            created_at, expires_at = batch.created_at - ago, batch.expires_at - ago
            session.execute(update(Batch).values(created_at=created_at, expires_at=expires_at, due_at=expires_at))
        return changes.change(context, owner, batch.id, **{"metadata": {}} | values)

    return make


def test_a_new_window_counts_from_the_creation(change: Callable[..., Batch]) -> None:
    batch = change(ago=3600, completion_window="2h")
    assert (batch.completion_window, batch.expires_at - batch.created_at) == ("2h", 7200)
    assert batch.due_at == batch.expires_at


def test_a_window_that_has_ended_is_refused_with_what_to_ask_for(change: Callable[..., Batch]) -> None:
    with pytest.raises(RequestError, match=r"one of 1h has ended at .* UTC.* Ask for more than 2 h") as refused:
        change(ago=7200, completion_window="1h")
    assert refused.value.param == "completion_window"


def test_a_window_that_the_deployment_does_not_offer_is_refused(change: Callable[..., Batch]) -> None:
    with pytest.raises(RequestError) as refused:
        change(completion_window="1s")
    assert refused.value.param == "completion_window"


def test_the_same_window_again_and_what_is_not_named_stay(change: Callable[..., Batch]) -> None:
    batch = change(completion_window="24h", priority="high", metadata={"team": "a"})
    assert (batch.completion_window, batch.priority, batch.request_metadata) == ("24h", 1, {"team": "a"})
    assert batch.expires_at == batch.due_at == batch.created_at + 86_400
