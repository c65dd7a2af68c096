"""The models of budgets and of /v1/usage."""

from decimal import Decimal
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, Field

from batchyard.settings import readable
from batchyard.tariffs import CURRENCY, PLACES
from store.accounting.budgets import State, WhenExceeded
from store.accounting.months import day_of_text
from store.accounting.usage import Dimension
from webapp.wire.fields import StrictBody
from webapp.wire.lists import QueryParams


class BudgetObject(BaseModel):
    """A project's budget of each month, and how it stands in this one."""

    object: Literal["budget"] = "budget"
    amount: str
    currency: str
    warn_at: int = Field(description="percent of it from which on there is a warning")
    when_exceeded: WhenExceeded = Field(description="what runs then is to run to its end, or is paused")
    month: str = Field(description="of UTC")
    spent: str = Field(description="so far, by tariffs with its currency; exact")
    state: State


class BudgetRemoved(BaseModel):
    object: Literal["budget"] = "budget"
    deleted: Literal[True] = True


class SetBudget(StrictBody):
    """The body of POST /v1/projects/{id}/budget."""

    amount: Annotated[Decimal, Field(ge=0, lt=10**12, decimal_places=PLACES)] = Field(
        description="what may be spent in a month; a number, or one as a text"
    )
    currency: str = Field(pattern=f"^{CURRENCY.pattern}$", description="that of the tariffs in models.toml")
    warn_at: int = Field(80, ge=1, le=100, description="percent of it from which on there is a warning")
    when_exceeded: WhenExceeded = Field("finish", description="what runs then runs to its end, or is paused")


DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)


def _dimensions(text: str) -> str:
    names = text.split(",")
    if not set(names) <= set(DIMENSIONS) or len(set(names)) < len(names):
        raise ValueError(f"write some of {', '.join(DIMENSIONS)}, separated by commas")
    return text


class UsageQuery(QueryParams):
    month: str | None = Field(None, description="such as 2026-11, of UTC; by default this one", examples=["2026-11"])
    by: Annotated[str, AfterValidator(_dimensions)] = Field(
        "day,model,project", description="some of day, model, project and key, separated by commas"
    )
    project: str | None = Field(
        None, min_length=1, description="only this project's; without it an admin key gets all, another key its own"
    )


class RecomputeUsage(StrictBody):
    """The body of POST /v1/usage/recompute."""

    since: Annotated[str, Field(strict=True), readable(day_of_text)] = Field(
        description="first day (UTC) whose costs are computed again", examples=["2026-11-01"]
    )
    write: bool = Field(False, strict=True, description="record the new costs; without it, they are shown only")


class Money(BaseModel):
    amount: str = Field(description="a decimal number, exact")
    currency: str


class UsageAmounts(BaseModel):
    """What was used. Tokens and seconds are of the requests that engines computed."""

    requests: int
    failed: int
    shared_requests: int = Field(description="of the requests, those that got another's answer, at no cost")
    input_tokens: int
    cached_tokens: int = Field(description="of the input tokens, those from the prefix cache")
    output_tokens: int
    seconds: float = Field(description="of the model's time, which the batches that ran at once share")


class UsageLine(UsageAmounts):
    """Usage of one day, model, project and key, as far as it is listed by them."""

    day: str | None
    model: str | None
    project: str | None
    key_id: str | None = Field(description="the key that created the batch or the job; null: a schedule")
    key: str | None = Field(description="what people call it")
    cost: Money | None = Field(description="null: the model had no tariff")


class UsageTotal(UsageAmounts):
    costs: list[Money] = Field(description="one for each currency")
    unpriced_requests: int = Field(description="requests to models without a tariff, whose cost nobody knows")


class RecomputedCost(BaseModel):
    """What a model cost as recorded, and at the prices of today; one amount for each currency."""

    model: str
    before: list[Money]
    after: list[Money]
    unpriced_requests: int = Field(description="requests recorded without a price before")


class RecomputedUsage(BaseModel):
    object: Literal["usage.recomputed"] = "usage.recomputed"
    since: str
    written: bool
    data: list[RecomputedCost] = Field(description="the models whose costs differ")


class UsageObject(BaseModel):
    object: Literal["usage"] = "usage"
    month: str
    data: list[UsageLine]
    total: UsageTotal
    budget: BudgetObject | None = Field(description="this month's of the project, or of the caller's; null: none")
