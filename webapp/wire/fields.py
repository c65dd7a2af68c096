"""Fields that several models have, and what forms and repeated requests need."""

import unicodedata
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from batchyard import durations, json_lines
from batchyard.settings import readable
from tasks.steps import registry
from tasks.webhooks import outbound


def _name(text: str) -> str:
    if any(unicodedata.category(character) == "Cc" for character in text):
        raise ValueError("it has a line break, a tab or another control character; take it out")
    return text


def _step(entry: dict[str, Any]) -> dict[str, Any]:
    names = sorted(registry.STEPS.names())
    name = entry.get("step")
    if not isinstance(name, str) or name not in names:
        raise ValueError(f"no step {name!r}; there are: {', '.join(names)}")
    return registry.STEPS.get(name).options.model_validate(entry).model_dump()


# The pattern is only for the OpenAPI document: `durations` validates, with a better message.
Window = Annotated[
    str,
    Field(strict=True, examples=["24h"], json_schema_extra={"pattern": "^[1-9][0-9]{0,8}[smhd]$"}),
    readable(durations.seconds),
]
Steps = list[Annotated[dict[str, Any], AfterValidator(_step)]]
# As with Window, the pattern is only for the document.
Name = Annotated[
    str,
    StringConstraints(strict=True, min_length=1, max_length=128),
    Field(json_schema_extra={"pattern": r"^[^\x00-\x1f\x7f-\x9f]+$"}),
    AfterValidator(_name),
]
Short = Annotated[str, StringConstraints(max_length=512, strict=True)]
OnInvalid = Literal["fail", "skip"]
CallbackUrl = Annotated[str, Field(strict=True, min_length=1, max_length=outbound.MAX_URL)]
STOP_WHEN = "pause the batch or job as soon as one of these is surely exceeded"
GUARD = "`repetition` ends answers that repeat themselves, on engines that can"
PLAN = "answer a random sample first, say what it shows of the whole, and wait for a resume"
CALLBACK_URL = "gets the event of its end, signed as webhooks are with the project's secret for callbacks"
ON_INVALID = "a line that cannot be run fails the batch before anything runs, or is skipped and gets an error line"
PRIORITY = (
    "the order among the project's own batches; background: it runs only where no other work would, of any project"
)
Metadata = Annotated[dict[Annotated[str, StringConstraints(max_length=64)], Short], Field(max_length=16)]


def from_json_text(value: Any) -> Any:
    """Parse a form field's JSON text. Any other value, and text that is not JSON, is returned unchanged."""
    if isinstance(value, str):
        try:
            return json_lines.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def declare_file(*, required: bool, name: str = "file") -> Callable[[dict[str, Any]], None]:
    """Return a hook that adds a field for a file to a form's schema. The form parser removes it before validation."""

    def declare(schema: dict[str, Any]) -> None:
        schema["properties"][name] = {"type": "string", "format": "binary"}
        if required:
            schema.setdefault("required", []).append(name)

    return declare


class StrictBody(BaseModel):
    """Refuse unknown fields of a body: a misspelt one must not be lost in silence."""

    model_config = ConfigDict(extra="forbid")


class OneOf(StrictBody):
    """Has one of `choices`."""

    choices: ClassVar[tuple[str, ...]]

    @model_validator(mode="after")
    def _one(self) -> Self:
        if [getattr(self, name) for name in self.choices].count(None) != len(self.choices) - 1:
            *names, last = map(repr, self.choices)
            raise ValueError(f"name one of {', '.join(names)} and {last}")
        return self


class ExpiresAfter(StrictBody):
    """When a file expires: `seconds` after `created_at`, between an hour and 30 days."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2592000)


class Repeatable(BaseModel):
    idempotency_key: str | None = Field(
        None, strict=True, min_length=1, max_length=255, description="as the header Idempotency-Key"
    )


MAX_DEPTH = 64
Id = Annotated[str, StringConstraints(strict=True, max_length=64)]


def _shallow(value: dict[str, Any]) -> dict[str, Any]:
    pending: list[tuple[Any, int]] = [(value, 1)]  # no recursion: clients nest as deep as they like
    while pending:
        outer, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
        inner = outer.values() if isinstance(outer, dict) else outer
        pending += [(entry, depth + 1) for entry in inner if isinstance(entry, dict | list)]
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_shallow)]


class Idempotent(BaseModel):
    idempotency_key: str | None = Field(None, alias="Idempotency-Key", min_length=1, max_length=255)


JsonText = BeforeValidator(from_json_text)


class PlanRequest(StrictBody):
    """A plan: answer a random sample of a batch's requests or a job's items first, then pause."""

    rows: int = Field(100, strict=True, ge=1, le=1_000, description="size of the sample")


class StopWhen(StrictBody):
    """Limits that pause a batch or job: shares of its answers so far, cost, tokens."""

    failed: float | None = Field(None, gt=0, lt=1, description="share of the requests that failed")
    length: float | None = Field(None, gt=0, lt=1, description="share of the requests whose answer was cut off")
    empty: float | None = Field(None, gt=0, lt=1, description="share of the requests whose answer has no text")
    invalid: float | None = Field(None, gt=0, lt=1, description="share of the requests whose answer lacks its form")
    looped: float | None = Field(None, gt=0, lt=1, description="share of the requests whose answer a guard ended")
    cost: float | None = Field(None, gt=0, allow_inf_nan=False, description="in the currency of models.toml")
    tokens: float | None = Field(None, gt=0, allow_inf_nan=False, description="input and output tokens")

    @classmethod
    def given(cls, limits: Self | None) -> dict[str, float] | None:
        """Return the limits that are set; None without any."""
        return (limits and limits.model_dump(exclude_none=True)) or None
