"""Pages of lists: where the next one begins."""

from __future__ import annotations

from pydantic import BaseModel

from webapp.wire.lists import ListPage


class Entry(BaseModel):
    id: str


def test_a_page_names_its_first_and_its_last_entry() -> None:
    page = ListPage[Entry].of([Entry(id="a"), Entry(id="b"), Entry(id="c")], has_more=True)
    assert (page.object, page.first_id, page.last_id, page.has_more) == ("list", "a", "c", True)


def test_an_empty_page_names_none() -> None:
    page = ListPage[Entry].of([], has_more=False)
    assert page.model_dump() == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
