"""What authors of recipes import: programs over the rows of an input, and the rewards and gates that they use.

A recipe is a generator function per item. It yields what it wants, is sent the outcomes, and returns a Result. It
depends on its item, its options and what it is sent alone, because it is run again from its beginning after a crash and
must then take the same way: no clock, no I/O, no global state, no random numbers but `Item.random`.

    @recipe("twice", Twice, stages=("draft", "final"))
    def twice(item: Item, options: Twice) -> Flow:
        \"\"\"Answer twice.\"\"\"
        (draft,) = yield [Ask("draft", item.chat(), model=options.model)]
        (final,) = yield [Ask("final", item.chat(f"Improve this: {draft.text}"), model=options.model)]
        return Result(text=final.text)
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import IO, Annotated, Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from batchyard.tables.cells import CellError
from batchyard.tables.template import TemplateError, parsed

CHAT = "/v1/chat/completions"
CONTENT = {CHAT: "messages", "/v1/completions": "prompt", "/v1/embeddings": "input"}
"""The key of a request body that holds an Ask's content, by endpoint."""

Messages: TypeAlias = list[dict[str, Any]]
State = Literal["completed", "failed", "stuck"]
T = TypeVar("T")


class _Judged:
    """The mark of a field that only judges answers: another value of it asks no engine anything."""


Judgement = Annotated[T, _Judged()]
"""`Judgement[T]` is T, for a field of options that is no part of the identity of work."""


def is_judgement(metadata: Sequence[object]) -> bool:
    """True if a pydantic field with this `metadata` was annotated as a Judgement."""
    return any(isinstance(mark, _Judged) for mark in metadata)


class BareOptions(BaseModel):
    """What the options of recipes and of composites have in common."""

    model_config = ConfigDict(extra="forbid")

    def judging(self) -> set[str]:
        """Return the names of the fields that only judge answers. A subclass may take out those that here do more."""
        return {name for name, field in type(self).model_fields.items() if is_judgement(field.metadata)}


class Options(BareOptions):
    """The options of a recipe: a subclass adds its own. What is common to all stands here."""

    retries: int = Field(2, ge=0, le=5, description="How often a request that failed for now is asked again")
    seeds: Literal["derived", "none"] = Field("derived", description="`none` sends no seeds: another run differs")
    system: str | None = Field(None, description="System message of every request")
    template: str | None = Field(None, description="Prompt with columns in braces: `Translate {text}`")
    limit: int | None = Field(None, ge=1, description="Only the first so many rows")
    shuffle: int | None = Field(None, description="Seed of a random order in which items begin")
    timeout: float | None = Field(None, gt=0, description="Most seconds of one request in its engine")
    streaming: bool = Field(True, description="False: a stage begins when the stage before has ended")

    @property
    def shares_answers(self) -> bool:
        """False if each request is computed, also one that equals another. A subclass may say so."""
        return True


class CompositeOptions(BareOptions):
    """The options of a composite: a subclass adds its own."""

    parallel: int | None = Field(None, ge=1, description="Most jobs at once; default: no limit")
    reuse: bool = Field(True, description="Take a completed job of the same configuration instead of running it again")


def field_of(columns: Any, path: str) -> Any:
    """Return the value at a dotted path of a row: `reward_model.ground_truth`. Raises KeyError if it has none."""
    value = columns
    for name in path.split("."):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            raise KeyError(path)
    return value


class InvalidItem(ValueError):
    """A row that is no item. `code` is one of the codes of bad rows: missing_prompt, invalid_messages, no_reward, …."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def messages_of(columns: Mapping[str, Any], template: str | None = None) -> Messages:
    """Return the messages of a row: column `messages`, else `prompt` (a list or a string), else the template.

    Raises:
        InvalidItem: there is none, or it is no list of messages.
    """
    for name in ("messages", "prompt"):
        value = columns.get(name)
        if value is not None:
            return [{"role": "user", "content": value}] if isinstance(value, str) else _messages(name, value)
    if template is None:
        present = ", ".join(columns) or "none"
        raise InvalidItem("missing_prompt", f"The row has no column 'messages' or 'prompt'; its columns: {present}.")
    try:
        return [{"role": "user", "content": parsed(template).fill(columns)}]
    except TemplateError as error:
        raise InvalidItem("invalid_template", f"The template has {error}.") from None
    except CellError as error:
        code = "missing_prompt" if error.code == "missing_column" else error.code
        raise InvalidItem(code, f"The template cannot be filled: {error}.") from None


def _messages(column: str, value: Any) -> Messages:
    messages = list(value) if isinstance(value, Sequence) else None
    if not messages:
        raise InvalidItem("invalid_messages", f"'{column}' is neither a text nor a list of messages.")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise InvalidItem("invalid_messages", f"'{column}[{index}]' is no message with 'role' and 'content'.")
    return [dict(message) for message in messages]


@dataclass(frozen=True)
class Item:
    """A row of a job's input.

    Attributes:
        number: row of the input, from 0.
        custom_id: of the column of that name, else `item-<number>`.
        columns: the row.
        total: items of the job.
        life: 1, and one more for each time that it began again: a person has put it back, or its recipe has changed.
        hint: what that person said to it.
        job_seed: the seed of the job.
    """

    number: int
    custom_id: str
    columns: Mapping[str, Any]
    total: int = 1
    life: int = 1
    hint: str | None = None
    job_seed: int = 0
    system: str | None = None
    template: str | None = None

    @cached_property
    def messages(self) -> Messages:
        """The item's own messages, see `messages_of`."""
        return messages_of(self.columns, self.template)

    def chat(self, *texts: str) -> Messages:
        """Return the system message, the item's messages, the hint, and each text as a message of the user."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        added = [text for text in (self.hint, *texts) if text is not None]
        return [*system, *self.messages, *({"role": "user", "content": text} for text in added)]

    def seed(self, *parts: str | int) -> int:
        """Return a seed of 53 bits that depends on the job's seed, the custom_id, the parts, and the life."""
        life: tuple[str | int, ...] = () if self.life == 1 else ("life", self.life)
        parts_json = json.dumps(
            [self.job_seed, self.custom_id, *life, *parts], ensure_ascii=False, separators=(",", ":")
        )
        digest = hashlib.blake2b(parts_json.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 11

    def random(self, *parts: str | int) -> Random:
        """Return a generator of random numbers, seeded with `seed("random", *parts)`."""
        return Random(self.seed("random", *parts))

    def failed(self, code: str, message: str | None = None, **values: Any) -> Result:
        """Return the result of an item that failed, with a code of the recipe's own."""
        return Result(**values).ended_as("failed", {"code": code, "message": message})

    def stuck(self, reason: str, message: str | None = None, **values: Any) -> Result:
        """Return the result of an item that needs a person."""
        return Result(**values).ended_as("stuck", {"code": reason, "message": message})


class Result:
    """The end of an item. `values` are JSON, and so is what the `counters` count for the whole job."""

    def __init__(self, text: str | None = None, counters: Mapping[str, int] | None = None, **values: Any) -> None:
        self.text = text
        self.counters = dict(counters or {})
        self.values = values
        self.state: State = "completed"
        self.error: dict[str, Any] | None = None

    def ended_as(self, state: State, error: dict[str, Any] | None) -> Result:
        """Set state and error, and return this result."""
        self.state, self.error = state, error
        return self

    def __repr__(self) -> str:
        return f"Result({self.state}, text={self.text!r}, error={self.error!r}, values={self.values!r})"


class Ask:
    """A request to a model.

    Args:
        stage: the recipe's stage that it belongs to.
        content: messages, or a text, which becomes one message of the user. What an endpoint other than chat takes as
            its prompt or input.
        model: the name of a served model.
        json: a JSON schema that the answer has to follow. Likewise `regex`, `choice` (a list of texts), `grammar`.
        sampling: other keys of the request body: temperature, max_tokens, seed, ….
    """

    __slots__ = ("content", "model", "sampling", "stage", "structure")

    def __init__(
        self,
        stage: str,
        content: Any,
        *,
        model: str,
        json: Mapping[str, Any] | None = None,
        regex: str | None = None,
        choice: Sequence[str] | None = None,
        grammar: str | None = None,
        **sampling: Any,
    ) -> None:
        structures = {"json": json, "regex": regex, "choice": choice, "grammar": grammar}
        self.structure = {kind: value for kind, value in structures.items() if value is not None}
        if len(self.structure) > 1:
            raise ValueError(f"an Ask takes one of {', '.join(self.structure)}, not all of them")
        self.stage = stage
        self.content = content
        self.model = model
        self.sampling = {name: value for name, value in sampling.items() if value is not None}

    def __repr__(self) -> str:
        return f"Ask({self.stage!r}, {self.content!r}, model={self.model!r}, {self.sampling | self.structure})"


@dataclass(frozen=True)
class Answer:
    """The outcome of an Ask. A request without an answer is not `ok`, and has no text.

    `seconds` are those in the engine. `extra` holds what else the answer has: log-probabilities, token ids, tool calls.
    """

    ok: bool
    text: str = ""
    error: Mapping[str, Any] | None = None
    status_code: int | None = 200
    finish_reason: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    seconds: float | None = None
    seed: int | None = None
    model: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """A call of a reward, with verl's arguments. Its outcome is Scored."""

    reward: str
    data_source: str
    solution_str: str
    ground_truth: Any
    extra_info: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Scored:
    """The outcome of a Score. `acc` and `pred` are None unless the reward says them; `values` is all that it said.

    A reward that raised, hung or crashed has score 0 and an `error`.
    """

    score: float
    acc: float | None = None
    pred: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Check:
    """A call of a gate. Its outcome is Checked."""

    gate: str
    text: str
    value: Any = None


@dataclass(frozen=True)
class Checked:
    """The outcome of a Check: the category and the message say why it did not pass."""

    passed: bool
    category: str | None = None
    message: str | None = None


@dataclass(frozen=True, init=False)
class Wait:
    """What an item waits for that no engine says. Its outcome is a Reply.

    Args:
        kind: `verdict`: a person or a CI says whether something passes.
        data: `gate` names what the verdict is about; all else, as JSON, is shown to whoever gives it.
    """

    kind: str
    data: Mapping[str, Any]

    def __init__(self, kind: str, **data: Any) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "data", data)


@dataclass(frozen=True)
class Reply:
    """The outcome of a Wait: the category and the message say why it did not pass, `by` who says so."""

    passed: bool
    category: str | None = None
    message: str | None = None
    by: str | None = None


@dataclass(frozen=True)
class Peer:
    """A look at the others. Its outcome is one of the last 64 texts of completed other items, None if there is none."""


@dataclass(frozen=True)
class Failure:
    """What a gate returns for a text that does not pass."""

    category: str
    message: str


@dataclass(frozen=True)
class Stage:
    """A stage of a recipe: its requests are one batch on this endpoint."""

    name: str
    endpoint: str = CHAT


Turn: TypeAlias = list[Ask] | list[Score] | list[Check] | Wait | Peer
Flow: TypeAlias = Generator[Turn, Any, Result]
"""What a recipe's generator yields, is sent and returns.

It yields a list of one kind, and is sent outcomes in the same order; or a single Wait or Peer, and is sent its outcome.
"""

O = TypeVar("O", bound=BareOptions)  # noqa: E741
Stages: TypeAlias = Sequence[str | Stage]


class EndedItem(Protocol):
    """An item as the finish hook sees it. `result` has its values, and its text as `text`.

    `started_at` and `ended_at` are Unix times: when its program began, and when it ended. An item that never began has
    none.
    """

    number: int
    custom_id: str
    columns: Mapping[str, Any]
    state: str
    result: Mapping[str, Any]
    error: Mapping[str, Any] | None
    started_at: float | None
    ended_at: float | None


class Results(Protocol):
    """The ended items of a job, and the way to its artifacts."""

    def items(self) -> Iterator[EndedItem]:
        """Stream all items in the order of the input."""

    def tables(self) -> Iterator[Any]:
        """Stream the input rows of these items in the same order, as tables of Arrow with the input's column types."""

    def create(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a new artifact for writing. It is one when the context ends without an error."""

    def of_child(self, job_id: str, name: str) -> Path | None:
        """Return a copy of an artifact of a child of a composite, None if the child has none of that name."""


@dataclass(frozen=True)
class Report:
    """What a finish hook returns: metrics by name, and blocks for the job's page.

    A block is {"kind": "table" | "bars" | "lines" | "histogram" | "matrix", "title": …, …}:
        table: "columns" (names) and "rows" (lists of values).
        bars, histogram: "labels" and "values".
        lines: "x" (numbers) and "series" [{"name", "y", "low", "high"}], low and high may be missing.
        matrix: "rows", "columns" (names) and "values" (a list for each row).

    `warnings` are codes and messages of what people should know before they use the results.
    """

    metrics: Mapping[str, Any] = field(default_factory=dict)
    view: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Child:
    """A job that a composite starts.

    Attributes:
        variant: the name of its configuration.
        repeat: from 0. It is added to the composite's seed.
        round: from 0. A child of a later round is started when that of the round before has completed, and its input is
            the artifact `artifact` of that one. Those of round 0 have the composite's input.
        recipe, options: its own.
    """

    variant: str
    repeat: int
    round: int
    recipe: str
    options: Mapping[str, Any]
    artifact: str | None = None

    @property
    def key(self) -> str:
        """What the child is called in its composite: `<variant>/<repeat>/<round>`."""
        return f"{self.variant}/{self.repeat}/{self.round}"

    @property
    def before(self) -> str | None:
        """The key of the child of the round before, None in the first round."""
        return f"{self.variant}/{self.repeat}/{self.round - 1}" if self.round else None


@dataclass(frozen=True)
class Recipe(Generic[O]):
    """A recipe by name, see `recipe`. One with `children` is a composite, see `composite`.

    The items of one with `cells` are what `recipes.tune` measures, one after the other. These are all that are known
    before it begins, by its options and its models. Its jobs start and stop engines, so only administrators make them.
    """

    name: str
    summary: str
    options: type[O]
    flow: Callable[[Item, O], Flow]
    stages_of: Callable[[O], Sequence[Stage]]
    loops: bool = False
    probe: Callable[[O], Sequence[Ask | Score | Check]] | None = None
    check: Callable[[O], None] | None = None
    columns: Callable[[O, Mapping[str, Any]], Sequence[str]] | None = None
    finish: Callable[[Results, O], Report] | None = None
    main: str = "results.jsonl"
    events: Callable[[EndedItem, O], Sequence[Mapping[str, Any]]] | None = None
    expected: Callable[[O], Sequence[float]] | None = None
    children: Callable[[O], Sequence[Child]] | None = None
    cells: Callable[[O, Sequence[Any]], Sequence[Any]] | None = None

    def __call__(self, item: Item, options: O) -> Flow:
        return self.flow(item, options)


def recipe(
    name: str,
    options: type[O],
    stages: Stages | Callable[[O], Stages],
    *,
    loops: bool = False,
    probe: Callable[[O], Sequence[Ask | Score | Check]] | None = None,
    check: Callable[[O], None] | None = None,
    columns: Callable[[O, Mapping[str, Any]], Sequence[str]] | None = None,
    finish: Callable[[Results, O], Report] | None = None,
    main: str = "results.jsonl",
    events: Callable[[EndedItem, O], Sequence[Mapping[str, Any]]] | None = None,
    expected: Callable[[O], Sequence[float]] | None = None,
) -> Callable[[Callable[[Item, O], Flow]], Recipe[O]]:
    """Make a recipe of a generator function. The first line of its docstring is the summary.

    Args:
        name: `[a-z][a-z0-9-]*`.
        options: a subclass of Options.
        stages: names in order, or a function of the options.
        loops: an item may ask in a stage before the one where it is.
        probe: returns examples of what it may yield: before a job is taken, their models, rewards and gates are looked
            up, and the gates' values and the requests are checked.
        check: raises ValueError for options that cannot be, with the path of the option and a colon before the reason.
        columns: returns the names of the columns that a row needs, dotted for fields within. It gets the row, and
            raises InvalidItem for one that cannot be an item.
        finish: writes artifacts when all items have ended.
        main: the artifact that the terminal writes to `-o`.
        events: returns what to tell clients of an item that has ended, as JSON objects with a `type`. Its `columns` may
            be left out.
        expected: returns how many requests an item makes in each stage, in their order, where that is known.
    """

    def made(flow: Callable[[Item, O], Flow]) -> Recipe[O]:
        def stages_of(chosen: O) -> list[Stage]:
            names = stages(chosen) if callable(stages) else stages
            return [stage if isinstance(stage, Stage) else Stage(stage) for stage in names]

        summary = (flow.__doc__ or "").strip().split("\n")[0]
        return Recipe(
            name,
            summary,
            options,
            flow,
            stages_of,
            loops=loops,
            probe=probe,
            check=check,
            columns=columns,
            finish=finish,
            main=main,
            events=events,
            expected=expected,
        )

    return made


def _no_flow(item: Item, options: Any) -> Flow:
    raise TypeError("a composite has children, and answers no items")


def composite(
    name: str,
    options: type[O],
    *,
    check: Callable[[O], None] | None = None,
    finish: Callable[[Results, O], Report] | None = None,
    main: str = "results.jsonl",
    cells: Callable[[O, Sequence[Any]], Sequence[Any]] | None = None,
) -> Callable[[Callable[[O], Sequence[Child]]], Recipe[O]]:
    """Make a recipe whose items are jobs of other recipes, of a function of the options that returns all of them.

    The arguments are those of `recipe`. A child stands behind the child of the round before. `finish` gets an item for
    each child, with its `variant`, `repeat` and `round` as columns, and its `job_id` and `status` in its result.
    """

    def made(children: Callable[[O], Sequence[Child]]) -> Recipe[O]:
        summary = (children.__doc__ or "").strip().split("\n")[0]
        return Recipe(
            name,
            summary,
            options,
            _no_flow,
            lambda _: [],
            check=check,
            finish=finish,
            main=main,
            children=children,
            cells=cells,
        )

    return made


@dataclass(frozen=True)
class Reward:
    """A reward by name: verl's signature, (data_source, solution_str, ground_truth, extra_info) → a number or a dict.

    Attributes:
        data_sources: those for which it is taken if a job names none.
        columns: what a row needs, dotted for fields within.
    """

    name: str
    function: Callable[..., float | dict[str, Any]]
    data_sources: Sequence[str] = ()
    columns: Sequence[str] = ()

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None
    ) -> float | dict[str, Any]:
        return self.function(data_source, solution_str, ground_truth, extra_info)


def reward(
    name: str, data_sources: Sequence[str] = (), columns: Sequence[str] = ()
) -> Callable[[Callable[..., float | dict[str, Any]]], Reward]:
    """Make a reward of a function, see Reward. A dict has `score`, and may have `acc`, `pred` and more."""
    return lambda function: Reward(name, function, tuple(data_sources), tuple(columns))


def scored(value: float | Mapping[str, Any]) -> Scored:
    """Return what a reward said as a Scored.

    Raises:
        TypeError: it is neither a finite number nor a dict with one as `score`.
    """
    values = dict(value) if isinstance(value, Mapping) else {"score": value}
    score, acc, pred = values.get("score"), values.get("acc"), values.get("pred")
    if not isinstance(score, int | float) or not math.isfinite(score):
        raise TypeError(f"a reward returns a number, or a dict with a number as 'score', not {value!r}")
    return Scored(
        score=float(score),
        acc=float(acc) if isinstance(acc, int | float) else None,
        pred=None if pred is None else str(pred),
        values=values,
    )


@dataclass(frozen=True)
class Gate:
    """A gate by name: (text, item, value) → a Failure, or None for a text that passes.

    Attributes:
        check: raises ValueError for a value that the gate cannot take, with the reason; None if it takes any.
    """

    name: str
    function: Callable[[str, Item, Any], Failure | None]
    check: Callable[[Any], object] | None = None

    def __call__(self, text: str, item: Item, value: Any = None) -> Failure | None:
        return self.function(text, item, value)


def gate(
    name: str, check: Callable[[Any], object] | None = None
) -> Callable[[Callable[[str, Item, Any], Failure | None]], Gate]:
    """Make a gate of a function, see Gate."""
    return lambda function: Gate(name, function, check)
