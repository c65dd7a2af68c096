"""Lists: a page of objects, by cursor."""

from __future__ import annotations

from typing import Generic, Literal, Self, TypeVar

from pydantic import BaseModel

Item = TypeVar("Item")


class ListPage(BaseModel, Generic[Item]):
    """A page of a list; `after=last_id` asks for the next one."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, data: list[Item], *, has_more: bool) -> Self:
        ids = [getattr(item, "id", None) for item in data]
        return cls(data=data, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None, has_more=has_more)
