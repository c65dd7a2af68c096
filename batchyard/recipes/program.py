"""A recipe's generator at work on one item: checks what it yields, names and seeds requests."""

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from batchyard.endpoints.catalog import ENDPOINTS
from batchyard.recipes.asks import CHAT, Ask, Call, Check, Flow, Peer, Score, Wait
from batchyard.recipes.item import Item
from batchyard.recipes.kinds import FlowRecipe
from batchyard.recipes.options import Options
from batchyard.recipes.outcomes import Answer, Called, Checked, Reply, Result, Scored
from batchyard.wording import quoted, suggestion

F = TypeVar("F", bound=Callable[..., Any])

MAX_REQUESTS = 1000
VERDICT = "verdict"
"""The kind of Wait that there is."""
MAX_GATE = 128


class RecipeError(Exception):
    """A recipe raised, or yielded what it may not. The message names the exception and the line."""

    def __init__(self, message: str, code: str = "recipe_error") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True)
class Request:
    """An Ask of one item, with its place in the recipe."""

    stage: str
    endpoint: str
    visit: int  # the item's turns in this stage, from 1
    sample: int  # the item's asks in this turn, from 0
    model: str
    body: Mapping[str, Any]  # the request body, without what `structure` becomes in the body of its model's engine
    structure: Mapping[str, Any]  # {"json" | "regex" | "choice" | "grammar": …}, or empty
    seed: int | None
    turn: int = 0  # the turn that it belongs to, from 1

    def custom_id(self, item: Item, retry: int = 0) -> str:
        """Return the request's custom_id, which no other request of the job has."""
        life = f"#{item.life}" if item.life > 1 else ""
        again = f"~{retry}" if retry else ""
        return f"{item.custom_id}{life}/{self.stage}.{self.visit}.{self.sample}{again}"


@dataclass(frozen=True)
class Chosen:
    """The outcome of a Peer, of which the recipe is sent the text."""

    text: str | None


Wants: TypeAlias = Sequence[Request | Score | Check | Call | Wait | Peer]
Outcomes: TypeAlias = (
    Sequence[Answer] | Sequence[Scored] | Sequence[Checked] | Sequence[Called] | Sequence[Reply] | Sequence[Chosen]
)


class Program:
    """The program of one item."""

    def __init__(self, recipe: FlowRecipe[Any], options: Options, item: Item, max_requests: int = MAX_REQUESTS) -> None:
        """Raises RecipeError, as `send` does."""
        self.item = item
        self.turn = 0  # number of the current turn, from 1
        self.wants: Wants = ()  # what the current turn has yielded; each gets one outcome. A Wait or a Peer is alone.
        self.result: Result | None = None  # the item's end, None before it
        self._recipe = recipe
        self._options = options
        self._stages = {stage.name: stage for stage in recipe.stages_of(options)}
        self._order = {name: number for number, name in enumerate(self._stages)}
        self._furthest = 0
        self._is_single = False
        self._visits: dict[str, int] = {}
        self._requests = 0
        self._max_requests = max_requests
        self._flow: Flow = recipe.function(item, options)
        self._advance(None)

    def send(self, outcomes: Outcomes) -> None:
        """Send a turn's outcomes, in the order of `wants`, and go on to the next turn."""
        if len(outcomes) != len(self.wants):
            raise ValueError(f"turn {self.turn} wants {len(self.wants)} outcomes, not {len(outcomes)}")
        self._advance(list(outcomes))

    def close(self) -> None:
        """End the generator."""
        self._flow.close()

    def _advance(self, outcomes: list[Any] | None) -> None:
        sent: Any = outcomes
        if outcomes and self._is_single:
            sent = outcomes[0].text if isinstance(outcomes[0], Chosen) else outcomes[0]
        try:
            wants = next(self._flow) if outcomes is None else self._flow.send(sent)
        except StopIteration as end:
            if not isinstance(end.value, Result):
                raise RecipeError(f"the recipe returned {quoted(str(end.value))}, not a Result") from None
            self.wants, self.result = (), end.value
            return
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[1:]
            place = f" ({frames[-1].filename.rsplit('/', 1)[-1]}, line {frames[-1].lineno})" if frames else ""
            raise RecipeError(f"{_kind(error)}: {error}{place}") from error
        self.turn += 1
        self._is_single = isinstance(wants, Call | Wait | Peer)
        self.wants = self._checked(wants)

    def _checked(self, wants: object) -> Wants:
        if isinstance(wants, Peer):
            return [wants]
        if isinstance(wants, Wait):
            gate = wants.data.get("gate")
            if wants.kind != VERDICT:
                reason = f"nobody replies to a Wait of kind {wants.kind!r}; it is {VERDICT!r}"
                raise RecipeError(f"turn {self.turn}: {reason}")
            if not isinstance(gate, str) or not 0 < len(gate) <= MAX_GATE:
                raise RecipeError(
                    f"turn {self.turn}: a Wait names its gate in 1 to {MAX_GATE} characters, not {gate!r}"
                )
            self._check_json(wants.data, "what the Wait says")
            return [wants]
        if isinstance(wants, Call):
            return self._called([wants])
        if not isinstance(wants, list) or not wants:
            raise RecipeError(f"turn {self.turn}: the recipe yielded {_kind(wants)}, not a list with something in it")
        for kind, checked in ((Ask, self._requests_of), (Score, list), (Check, list), (Call, self._called)):
            if all(isinstance(want, kind) for want in wants):
                return checked(wants)
        kinds = ", ".join(sorted({_kind(want) for want in wants}))
        if any(isinstance(want, Wait | Peer) for want in wants):
            raise RecipeError(f"turn {self.turn}: the recipe yielded a list with {kinds}; yield a Wait or a Peer alone")
        raise RecipeError(f"turn {self.turn}: the recipe yielded a list of {kinds}; one turn has one kind")

    def _called(self, calls: list[Call]) -> list[Call]:
        self._count(len(calls))
        for call in calls:
            if not isinstance(call.tool, str):
                raise RecipeError(f"turn {self.turn}: a Call names its tool in a text, not {quoted(str(call.tool))}")
            self._check_json(call.arguments, f"what tool {call.tool!r} is called with")
        return calls

    def _check_json(self, value: Any, what: str) -> None:
        from batchyard import json_lines

        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
            json_lines.dumps(value)  # nests less deeply than Python
        except (TypeError, ValueError) as error:
            raise RecipeError(f"turn {self.turn}: {what} is no JSON: {error}") from None

    def _count(self, number: int) -> None:
        self._requests += number
        if self._requests > self._max_requests:
            message = f"the item asked {self._requests} times, the most is {self._max_requests}"
            raise RecipeError(message, "too_many_requests")

    def _requests_of(self, asks: list[Ask]) -> list[Request]:
        self._count(len(asks))
        visits: dict[str, int] = {}
        requests = []
        for sample, ask in enumerate(asks):
            stage = self._stages.get(ask.stage)
            if stage is None:
                remedy = suggestion(ask.stage, self._stages)
                raise RecipeError(f"turn {self.turn}: no stage is named {ask.stage!r}; {remedy}")
            order = self._order[stage.name]
            if order < self._furthest and not self._recipe.loops:
                furthest = list(self._stages)[self._furthest]
                raise RecipeError(
                    f"turn {self.turn}: the item asks in stage {stage.name!r} after {furthest!r}; "
                    "declare the recipe with loops=True"
                )
            self._furthest = max(self._furthest, order)
            if stage.name not in visits:
                visits[stage.name] = self._visits[stage.name] = self._visits.get(stage.name, 0) + 1
            requests.append(self._request(ask, stage.endpoint, visits[stage.name], sample))
        return requests

    def _request(self, ask: Ask, endpoint: str, visit: int, sample: int) -> Request:
        content = ask.content
        if endpoint == CHAT and isinstance(content, str):
            content = [{"role": "user", "content": content}]
        body = {"model": ask.model, ENDPOINTS[endpoint].content[0]: content, **ask.sampling}
        seed = body.get("seed")
        drawn = ask.sampling.get("temperature") != 0 and ENDPOINTS[endpoint].generates
        if seed is None and drawn and self._options.seeds == "derived":
            seed = body["seed"] = self.item.seed(ask.stage, visit, sample)
        return Request(ask.stage, endpoint, visit, sample, ask.model, body, ask.structure, seed, self.turn)


def play(
    recipe: FlowRecipe[Any],
    item: Item,
    options: Options,
    answer: Callable[[Request], Answer | str],
    judge: Callable[[Score | Check], Scored | Checked] | None = None,
    reply: Callable[[Wait], Reply] | None = None,
    peer: Callable[[], str | None] = lambda: None,
    call: Callable[[Call], Called] | None = None,
) -> Result:
    """Run a recipe for one item without a stack, for tests of recipes.

    Args:
        answer: returns the answer to a request, or only its text.
        judge: returns the outcome of a Score or a Check; needed if the recipe yields any.
        reply: likewise that of a Wait.
        peer: returns the outcome of a Peer.
        call: likewise that of a Call, which a tool's `function` may make.

    Raises RecipeError: as Program does.
    """
    program = Program(recipe, options, item)
    while program.result is None:
        outcomes: list[Any] = []
        for want in program.wants:
            if isinstance(want, Request):
                outcome = answer(want)
                value = Answer(ok=True, text=outcome) if isinstance(outcome, str) else outcome
                outcomes.append(replace(value, seed=want.seed, model=want.model))
            elif isinstance(want, Peer):
                outcomes.append(Chosen(peer()))
            elif isinstance(want, Wait):
                outcomes.append(_passed(reply, "reply", want)(want))
            elif isinstance(want, Call):
                outcomes.append(_passed(call, "call", want)(want))
            else:
                outcomes.append(_passed(judge, "judge", want)(want))
        program.send(outcomes)
    return program.result


def _passed(function: F | None, name: str, want: object) -> F:
    if function is None:
        raise ValueError(f"the recipe yields a {_kind(want)}, and `{name}` was not passed")
    return function


def _kind(value: object) -> str:
    return type(value).__name__
