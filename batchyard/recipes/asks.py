"""What a recipe yields."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from batchyard.endpoints.catalog import CHAT as CHAT_ENDPOINT
from batchyard.recipes.outcomes import Result

CHAT = CHAT_ENDPOINT.path


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
class Score:
    """A call of a reward, with verl's arguments. Its outcome is Scored."""

    reward: str
    data_source: str
    solution_str: str
    ground_truth: Any
    extra_info: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Check:
    """A call of a gate. Its outcome is Checked."""

    gate: str
    text: str
    value: Any = None


@dataclass(frozen=True, init=False)
class Call:
    """A call of a tool. Its outcome is Called.

    `arguments`: JSON, as the tool's parameters say.
    """

    tool: str
    arguments: Mapping[str, Any]

    def __init__(self, tool: str, /, **arguments: Any) -> None:
        object.__setattr__(self, "tool", tool)
        object.__setattr__(self, "arguments", arguments)


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
class Peer:
    """A look at the others. Its outcome is one of the last 64 texts of completed other items, None if there is none."""


@dataclass(frozen=True)
class Stage:
    """A stage of a recipe: its requests are one batch on this endpoint."""

    name: str
    endpoint: str = CHAT


Turn: TypeAlias = list[Ask] | list[Score] | list[Check] | list[Call] | Call | Wait | Peer
Flow: TypeAlias = Generator[Turn, Any, Result]
"""What a recipe's generator yields, is sent and returns.

It yields a list of one kind, and is sent outcomes in the same order; or a single Call, Wait or Peer, and is sent its
outcome.
"""
Stages: TypeAlias = Sequence[str | Stage]
