"""What recipe `agent` leaves behind: trajectories.parquet, traces.jsonl, metrics, and blocks for the job's page.

`trajectories.parquet` has the input's columns, those that verl reads and the input lacks, the messages and tools of its
multi-turn data sets (`verl/utils/dataset/multiturn_sft_dataset.py`), and the tokens of a rollout with its loss mask, by
the names of verl's agent loops.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from batchyard import json_lines
from batchyard.recipes import Bars, Block, EndedItem, Histogram, Messages, Report, Results, Tool
from recipes.agent import tokens
from recipes.agent.options import AgentLoop
from recipes.agent.traces import trace_of
from recipes.measures import intervals
from recipes.rollout.report import PROMPT_WITH_TOOLS, asked_of, typed, with_read_by_verl, write_table

MAIN, TRACES = "trajectories.parquet", "traces.jsonl"
RESULTS = pa.schema(
    [
        ("messages", PROMPT_WITH_TOOLS),
        ("tools", pa.string()),
        ("num_turns", pa.int64()),
        ("stop", pa.string()),
        ("result", pa.string()),
        ("score", pa.float64()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("response_mask", pa.list_(pa.int8())),
        ("response_logprobs", pa.list_(pa.float32())),
    ]
)
COLUMNS = tuple(name for name in RESULTS.names if name != "messages")
"""Names that no column of the input may have. Its messages become those of the trajectory."""
BLOCK_ITEMS = 256
"""Items that are written at once."""


def write(results: Results, options: AgentLoop, tools: Sequence[Tool]) -> Report:
    summary = _Summary()
    with results.create(TRACES) as traces, results.create(MAIN) as file:

        def rows_of(columns: pa.Table, items: Sequence[EndedItem]) -> pa.Table:
            for item in items:
                summary.add(item)
                if item.result.get("turns"):
                    traces.write(json_lines.line(trace_of(item, asked_of(item, options), tools, options)))
            return _rows(columns, items, options, tools)

        write_table(file, results, rows_of, lambda item: 1, BLOCK_ITEMS - 1)
    return summary.report()


def _rows(columns: pa.Table, items: Sequence[EndedItem], options: AgentLoop, tools: Sequence[Tool]) -> pa.Table:
    columns = with_read_by_verl(columns, items, options, PROMPT_WITH_TOOLS)
    values = [_values(item, options) for item in items]
    described = [{"type": "function", "function": tool.described} for tool in tools]
    for name, kind in zip(RESULTS.names, RESULTS.types, strict=True):
        array = _tools(described, len(items)) if name == "tools" else pa.array([row[name] for row in values], kind)
        place = columns.schema.get_field_index(name)
        columns = columns.append_column(name, array) if place == -1 else columns.set_column(place, name, array)
    return columns


def _tools(described: list[dict[str, Any]], rows: int) -> pa.Array:
    """Return the tools for each row, as objects where Arrow keeps them as they are, else as JSON.

    Arrow gives the objects of a list the same keys: the parameters of one tool would appear, as null, in another.
    """
    try:
        array = pa.array([described] * rows)
        if not described or (rows and array[0].as_py() == described):
            return array
    except pa.ArrowInvalid:
        pass  # values of several types at one place
    return pa.array([json_lines.dumps(described).decode()] * rows, pa.string())


def _values(item: EndedItem, options: AgentLoop) -> dict[str, Any]:
    turns: Sequence[Mapping[str, Any]] = item.result.get("turns") or []
    return {
        "messages": [typed(message) for message in _history(item, turns, options)],
        "num_turns": len(turns),
        "stop": item.result.get("stop") or item.state,
        "result": item.result.get("text"),
        "score": item.result.get("score"),
        **tokens.flat([turn for turn in turns if turn["text"] is not None]),
    }


def _history(item: EndedItem, turns: Sequence[Mapping[str, Any]], options: AgentLoop) -> Iterator[dict[str, Any]]:
    """Yield the prompt, and the answers and results of all turns, as messages of chat completions."""
    prompt: Messages = asked_of(item, options)
    yield from prompt
    for turn in turns:
        if turn["text"] is None:
            return
        calls = [
            {"id": use["id"], "type": "function", "function": {"name": use["name"], "arguments": use["arguments"]}}
            for use in turn["tool_calls"]
        ]
        yield {"role": "assistant", "content": turn["text"], **({"tool_calls": calls} if calls else {})}
        for use in turn["tool_calls"]:
            yield {"role": "tool", "tool_call_id": use["id"], "content": use["result"], "name": use["name"]}


class _Summary:
    """Metrics over all items."""

    def __init__(self) -> None:
        self._items = 0
        self._scores: list[float] = []
        self._turns: Counter[int] = Counter()
        self._stops: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    def add(self, item: EndedItem) -> None:
        turns = item.result.get("turns") or []
        self._items += 1
        self._turns[len(turns)] += 1
        self._stops[item.result.get("stop") or item.state] += 1
        if item.result.get("score") is not None:
            self._scores.append(item.result["score"])
        for turn in turns:
            self._tokens.update({name: turn[name] for name in ("input_tokens", "output_tokens")})
            for use in turn["tool_calls"]:
                self._calls[use["name"]] += 1
                if use["error"] is not None:
                    self._errors[use["error"]] += 1

    def report(self) -> Report:
        score: dict[str, Any] = {}
        if count := len(self._scores):
            (ends,) = intervals.of_means([self._scores])
            score = {"score": intervals.document(sum(self._scores) / count, count, ends)}
        metrics = {
            "items": self._items,
            **score,
            "stops": dict(self._stops),
            "turns": sum(number * items for number, items in self._turns.items()),
            "tool_calls": dict(self._calls),
            "tool_errors": dict(self._errors),
            **self._tokens,
        }
        most = max(self._turns, default=0)
        turns = [self._turns[number] for number in range(most + 1)]
        view: list[Block] = [
            Bars(title="Why items have ended", labels=list(self._stops), values=list(self._stops.values())),
            Histogram(title="Items by turns", labels=[str(number) for number in range(most + 1)], values=turns),
        ]
        if self._calls:
            view.append(Bars(title="Calls of tools", labels=list(self._calls), values=list(self._calls.values())))
        return Report(metrics, view if self._items else [])
