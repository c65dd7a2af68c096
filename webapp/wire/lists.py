"""Lists: a page of objects, by cursor."""

from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")


class QueryParams(BaseModel):
    """Query parameters. An unknown one is refused: as a filter without effect it would mislead."""

    model_config = ConfigDict(extra="forbid")


class ListQuery(QueryParams):
    after: str | None = Field(None, description="the id of the last one of the page before")
    limit: int = Field(20, ge=1, le=100)


class Deleted(BaseModel):
    id: str
    deleted: Literal[True] = True


class ListPage(BaseModel, Generic[Item]):
    """A page of a list; `after=last_id` asks for the next one."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """Return the name in the OpenAPI document: `FilePage` for a list of FileObject."""
        return f"{params[0].__name__.removesuffix('Object')}Page"

    @classmethod
    def of(cls, data: list[Item], *, has_more: bool) -> Self:
        ids = [getattr(item, "id", None) for item in data]
        return cls(data=data, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None, has_more=has_more)
