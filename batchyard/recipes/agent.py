"""A ready loop for agents: a model calls tools until it is done, or a limit is reached.

run = yield from agent(item.chat(), stage="turn", model=options.model, tools=[search], max_turns=8)
return Result(run.text, stop=run.stop)
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from batchyard.endpoints.catalog import CHAT, ENDPOINTS, RESPONSES
from batchyard.recipes.asks import Ask, Call
from batchyard.recipes.item import Messages
from batchyard.recipes.outcomes import Answer, Called
from batchyard.recipes.tools import Tool
from batchyard.wording import cut, nearest, quoted

Stop: TypeAlias = Literal["done", "stop_tool", "max_turns", "max_tokens", "budget", "no_answer"]
MAX_CALLS = 32
"""Most calls of tools in one turn. Others are answered with an error."""
MAX_QUOTED = 500


@dataclass(frozen=True)
class ToolUse:
    """A call as a model has asked for it. `called` is what it was answered."""

    id: str  # `call00102` is the third of the second turn. An engine's own would be another in each run.
    name: str
    arguments: str  # JSON, as the model has written it
    called: Called


@dataclass(frozen=True)
class AgentTurn:
    """A turn: what the model has answered, and the tools that it has called."""

    answer: Answer
    uses: Sequence[ToolUse] = ()


@dataclass
class AgentRun:
    """What an agent has done."""

    history: Messages  # the messages, or the input items of Responses, with all turns
    turns: list[AgentTurn] = field(default_factory=list)
    # `done`: the model has called no tool; `stop_tool`: it has called that one; `no_answer`: a request failed; else the
    # limit that was reached
    stop: Stop = "max_turns"

    @property
    def text(self) -> str | None:
        """The model's last text; None if it has not written any."""
        return next((turn.answer.text for turn in reversed(self.turns) if turn.answer.text), None)

    @property
    def error(self) -> Mapping[str, Any] | None:
        """Why the last request failed; None if it has not."""
        return self.turns[-1].answer.error if self.stop == "no_answer" else None

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(turn.answer.output_tokens for turn in self.turns)

    @property
    def tokens(self) -> int:
        """Tokens that were read and written in all turns. What each turn reads again counts again."""
        return self.output_tokens + sum(turn.answer.input_tokens for turn in self.turns)


AgentFlow: TypeAlias = Generator[list[Ask] | list[Call], Any, AgentRun]


class _Chat:
    """How chat completions name tools, their calls and their results."""

    def tool(self, tool: Tool) -> dict[str, Any]:
        return {"type": "function", "function": tool.described}

    def asked(self, call: Mapping[str, Any]) -> tuple[Any, Any]:
        function = call.get("function")
        return (function.get("name"), function.get("arguments")) if isinstance(function, Mapping) else (None, None)

    def answered(self, text: str, uses: Sequence[ToolUse]) -> Messages:
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if not uses:
            return [message]
        message["tool_calls"] = [
            {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": _readable(use.arguments)}}
            for use in uses
        ]
        return [message, *({"role": "tool", "tool_call_id": use.id, "content": use.called.text} for use in uses)]


class _Responses:
    """The same of Responses."""

    def tool(self, tool: Tool) -> dict[str, Any]:
        return {"type": "function", **tool.described}

    def asked(self, call: Mapping[str, Any]) -> tuple[Any, Any]:
        return call.get("name"), call.get("arguments")

    def answered(self, text: str, uses: Sequence[ToolUse]) -> Messages:
        said = [{"type": "message", "role": "assistant", "content": text}] if text else []
        calls = [
            {"type": "function_call", "call_id": use.id, "name": use.name, "arguments": _readable(use.arguments)}
            for use in uses
        ]
        results = [{"type": "function_call_output", "call_id": use.id, "output": use.called.text} for use in uses]
        return [*said, *calls, *results]


_DIALECTS: Mapping[str, _Chat | _Responses] = {CHAT.path: _Chat(), RESPONSES.path: _Responses()}


def agent(
    messages: Messages,
    *,
    stage: str,
    model: str,
    tools: Sequence[Tool],
    endpoint: str = CHAT.path,
    max_turns: int = 8,
    max_tokens: int | None = None,
    budget: int | None = None,
    stop_tool: str | None = None,
    **sampling: Any,
) -> AgentFlow:
    """Let a model call tools until it calls none, or a limit is reached. `yield from` it.

    What the model does wrong (a tool that is not there, arguments that are not JSON or not as the tool takes them) it
    is told in the place of a result; so it is what a tool fails with. Calls of one turn run side by side.

    Args:
        stage: a stage of the recipe on `endpoint`.
        endpoint: chat completions or Responses.
        max_turns: most requests.
        max_tokens: most tokens of all answers together. The last request is limited to what is left.
        budget: no request after so many tokens, read and written, of all requests together.
        stop_tool: a call of this tool that succeeds is the last one: it hands over the result of the task.
        sampling: other keys of the request bodies: `temperature`, `tool_choice`, `max_completion_tokens` of one answer
            (of Responses `max_output_tokens`), …
    """
    dialect, limits = _DIALECTS[endpoint], {*ENDPOINTS[endpoint].output_limits}
    by_name = {tool.name: tool for tool in tools}
    run = AgentRun(list(messages))
    if by_name:
        sampling = {**sampling, "tools": [dialect.tool(tool) for tool in tools]}
    for number in range(1, max_turns + 1):
        if max_tokens is not None:
            names = limits & sampling.keys() or {ENDPOINTS[endpoint].output_limits[-1]}
            left = max_tokens - run.output_tokens
            sampling = {**sampling, **{name: min(left, sampling.get(name) or left) for name in names}}
        answers: list[Answer] = yield [Ask(stage, list(run.history), model=model, **sampling)]
        (answer,) = answers
        if not answer.ok:
            run.turns.append(AgentTurn(answer))
            run.stop = "no_answer"
            return run
        asked = [dialect.asked(call) for call in answer.extra.get("tool_calls") or () if isinstance(call, Mapping)]
        uses = yield from _used(number, asked, by_name)
        run.turns.append(AgentTurn(answer, uses))
        run.history += dialect.answered(answer.text, uses)
        if not uses:
            run.stop = "done"
        elif any(use.name == stop_tool and use.called.ok for use in uses):
            run.stop = "stop_tool"
        elif max_tokens is not None and run.output_tokens >= max_tokens:
            run.stop = "max_tokens"
        elif budget is not None and run.tokens >= budget:
            run.stop = "budget"
        else:
            continue
        return run
    return run


def _used(
    number: int, asked: Sequence[tuple[Any, Any]], tools: Mapping[str, Tool]
) -> Generator[list[Call], list[Called], list[ToolUse]]:
    """Make the calls of a turn that can be made, side by side. Return all in their order."""
    outcomes: list[Called | Call] = []
    for index, (name, arguments) in enumerate(asked):
        if index >= MAX_CALLS:
            outcomes.append(Called.failed("too_many_calls", f"A turn has at most {MAX_CALLS} calls."))
        elif name not in tools:
            hint = f" Did you mean {near!r}?" if (near := nearest(str(name), tools)) else ""
            message = f"No tool is named {quoted(str(name))}.{hint} Available: {', '.join(tools) or 'none'}."
            outcomes.append(Called.failed("tool_not_found", message))
        else:
            parsed = _parsed(arguments)
            if isinstance(parsed, str):
                outcomes.append(Called.failed("invalid_arguments", parsed))
            else:
                outcomes.append(Call(name, **parsed))
    calls = [outcome for outcome in outcomes if isinstance(outcome, Call)]
    results = iter((yield calls) if calls else ())
    called = [next(results) if isinstance(outcome, Call) else outcome for outcome in outcomes]
    return [
        ToolUse(f"call{number:03}{index:02}", str(name), _text(arguments), outcome)
        for index, ((name, arguments), outcome) in enumerate(zip(asked, called, strict=True))
    ]


def _parsed(arguments: Any) -> dict[str, Any] | str:
    """Return the arguments of a call, or why they are none."""
    import orjson  # here, for commands load this module

    from batchyard import json_lines

    text = _text(arguments)
    try:
        parsed = json_lines.loads(text or "{}")
        json_lines.dumps(parsed)  # it nests less deeply than it reads
    except (orjson.JSONDecodeError, orjson.JSONEncodeError) as error:
        return f"The arguments are not JSON: {error}. They were: {cut(text, MAX_QUOTED)}"
    return parsed if isinstance(parsed, dict) else f"The arguments are not a JSON object: {cut(text, MAX_QUOTED)}"


def _readable(arguments: str) -> str:
    """Return arguments as the history can have them: chat templates read them as an object."""
    return arguments if isinstance(_parsed(arguments), dict) and arguments else "{}"


def _text(arguments: Any) -> str:
    from batchyard import json_lines  # as above

    return arguments if isinstance(arguments, str) else json_lines.dumps(arguments, default=str).decode()
