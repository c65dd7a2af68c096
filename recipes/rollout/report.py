"""What recipe `rollout` leaves behind: rollouts.parquet, samples.jsonl, preferences.jsonl, best.jsonl, metrics, view.

`rollouts.parquet` has the input's columns, those that verl reads and the input lacks (`verl/utils/dataset`), and the
samples. `samples.jsonl` has the keys of verl's dump of generations.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import IO, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from batchyard import json_lines
from batchyard.recipes import EndedItem, Messages, Report, Results, messages_of
from recipes.measures.tally import Sample, all_binary, is_judged, samples_of
from recipes.reports import as_text, preference
from recipes.rollout.metrics import Summary
from recipes.rollout.options import RewardOptions, Rollout, data_source_of, ground_truth_of

Kept: TypeAlias = Mapping[str, Any]
"""A sample as the item's result keeps it."""

SAMPLES = {
    "responses": ("text", pa.list_(pa.string())),
    "scores": ("score", pa.list_(pa.float64())),
    "finish_reasons": ("finish_reason", pa.list_(pa.string())),
    "seeds": ("seed", pa.list_(pa.int64())),
    "output_tokens": ("output_tokens", pa.list_(pa.int64())),
    "unanswered": ("", pa.int64()),
    "reasonings": ("reasoning", pa.list_(pa.string())),
}
"""Columns of samples, each with the key of a kept sample and its type."""
LOGPROBS = {"logprobs": ("logprobs", pa.list_(pa.list_(pa.float64())))}
RESPONSE_IDS = {"response_ids": ("response_ids", pa.list_(pa.list_(pa.int32())))}
COLUMNS = (*SAMPLES, *LOGPROBS, *RESPONSE_IDS)
"""Names that no column of the input may have."""
PROMPT = pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))
_FUNCTION = pa.struct([("name", pa.string()), ("arguments", pa.string())])
_CALLS = pa.list_(pa.struct([("id", pa.string()), ("type", pa.string()), ("function", _FUNCTION)]))
_TEXTS = ((name, pa.string()) for name in ("content", "role", "name", "refusal", "tool_call_id"))
PROMPT_WITH_TOOLS = pa.list_(pa.struct([*_TEXTS, ("tool_calls", _CALLS)]))
"""Of prompts with more than texts in a message."""
BLOCK_BYTES = 16 * 1024 * 1024
"""Approximate text of the items that are written at once."""


def write(results: Results, options: Rollout) -> Report:
    """Write the artifacts, and return the metrics."""
    binary, plain = True, True
    for item in results.items():
        binary = binary and all_binary([_samples(item)])
        plain = plain and all(message.keys() <= {"role", "content"} for message in asked_of(item, options))
    summary = Summary(options)
    names = ["samples.jsonl", *{"best": ["best.jsonl"], "pairs": ["preferences.jsonl"]}.get(options.keep, [])]
    with ExitStack() as stack:
        samples_file, *more = [stack.enter_context(results.create(name)) for name in names]

        def add(item: EndedItem) -> None:
            samples = list(samples_of(_samples(item), options.n, binary=binary))
            summary.add(data_source_of(item.columns), samples)
            messages = asked_of(item, options)
            for line in _sample_lines(item, samples, messages, options):
                samples_file.write(json_lines.line(line))
            judged = [sample for sample in _samples(item) if is_judged(sample)]
            for file in more if judged else ():
                if options.keep == "best":
                    best = max(judged, key=lambda sample: sample["score"])
                    file.write(json_lines.line({"prompt": messages, "response": best["text"], "score": best["score"]}))
                elif pair := preference(messages, judged, "score"):
                    file.write(json_lines.line(pair))

        def rows_of(columns: pa.Table, items: Sequence[EndedItem]) -> pa.Table:
            for item in items:
                add(item)
            return _rows(columns, items, options, PROMPT if plain else PROMPT_WITH_TOOLS)

        def weigh(item: EndedItem) -> int:
            return sum(len(sample["text"] or "") for sample in _samples(item))

        with results.create("rollouts.parquet") as file:
            write_table(file, results, rows_of, weigh, BLOCK_BYTES)
    return summary.report()


def _samples(item: EndedItem) -> list[Kept]:
    samples: list[Kept] = item.result.get("samples") or []
    return samples


def write_table(
    file: IO[bytes],
    results: Results,
    rows_of: Callable[[pa.Table, Sequence[EndedItem]], pa.Table],
    weigh: Callable[[EndedItem], int],
    limit: int,
) -> None:
    """Write a row for each item, in the order of the input.

    Args:
        rows_of: makes the rows of some items, beside their columns of the input.
        weigh: what an item counts. Items are written at once until they count more than `limit`.
    """
    items = results.items()
    writer: pq.ParquetWriter | None = None
    try:
        for table in results.tables():
            start, block, weight = 0, [], 0
            for number, item in enumerate(islice(items, table.num_rows), 1):
                block.append(item)
                weight += weigh(item)
                if weight > limit or number == table.num_rows:
                    rows = rows_of(table.slice(start, len(block)), block)
                    writer = writer or pq.ParquetWriter(file, rows.schema, compression="zstd")
                    writer.write_table(rows)
                    start, block, weight = number, [], 0
        if writer is None:
            writer = pq.ParquetWriter(file, rows_of(pa.table({}), []).schema)
    finally:
        if writer is not None:
            writer.close()


def with_read_by_verl(
    columns: pa.Table, items: Sequence[EndedItem], options: RewardOptions, prompt: pa.DataType
) -> pa.Table:
    """Return the input's columns and those that verl reads. A column `prompt` of texts becomes one of messages."""
    truth = pa.struct([("ground_truth", pa.string()), ("style", pa.string())])
    info = pa.struct([("index", pa.int64()), ("split", pa.string())])
    read: dict[str, tuple[pa.DataType, Callable[[EndedItem], Any]]] = {
        "data_source": (pa.string(), lambda item: data_source_of(item.columns)),
        "prompt": (prompt, lambda item: [typed(message) for message in asked_of(item, options)]),
        "ability": (pa.string(), lambda item: "unknown"),
        "reward_model": (
            truth,
            lambda item: {"ground_truth": as_text(ground_truth_of(item.columns, options)), "style": "rule"},
        ),
        "extra_info": (info, lambda item: {"index": item.number, "split": "unknown"}),
    }
    for name, (kind, value) in read.items():
        place = columns.schema.get_field_index(name)
        if place == -1:
            columns = columns.append_column(name, pa.array([value(item) for item in items], kind))
        elif name == "prompt" and columns.schema.field(place).type in (pa.string(), pa.large_string()):
            columns = columns.set_column(place, name, pa.array([value(item) for item in items], kind))
    return columns


def _rows(columns: pa.Table, items: Sequence[EndedItem], options: Rollout, prompt: pa.DataType) -> pa.Table:
    columns = with_read_by_verl(columns, items, options, prompt)
    answered = [[sample for sample in _samples(item) if sample["text"] is not None] for item in items]
    named = SAMPLES | (LOGPROBS if options.logprobs else {}) | (RESPONSE_IDS if options.response_ids else {})
    for name, (key, kind) in named.items():
        values: list[Any] = [[sample.get(key) for sample in samples] for samples in answered]
        if name == "unanswered":
            sizes = [len(_samples(item)) or options.n for item in items]
            values = [number - len(samples) for number, samples in zip(sizes, answered, strict=True)]
        columns = columns.append_column(name, pa.array(values, kind))
    return columns


def asked_of(item: EndedItem, options: RewardOptions) -> Messages:
    """Return the messages that were asked. A content of texts is these, joined by line feeds; of other parts JSON."""
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    messages = [*system, *messages_of(item.columns, options.template)]
    return [
        {name: _content(value) if name == "content" and value is not None else value for name, value in message.items()}
        for message in messages
    ]


def _content(value: Any) -> str:
    parts = value if isinstance(value, list) else []
    if parts and all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts):
        return "\n".join(part["text"] for part in parts)  # as vLLM joins them for templates that take texts only
    return as_text(value)


def typed(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with the types of PROMPT_WITH_TOOLS: arguments of calls may be objects, for example."""
    typed = {
        name: value if value is None else as_text(value) for name, value in message.items() if name != "tool_calls"
    }
    calls = message.get("tool_calls")
    return typed | {"tool_calls": [_call(call) for call in calls] if isinstance(calls, list) else None}


def _call(call: Any) -> dict[str, Any]:
    values = call if isinstance(call, Mapping) else {}
    called = values.get("function", values.get("custom"))
    called = called if isinstance(called, Mapping) else {}
    arguments = called.get("arguments", called.get("input"))
    texts = {"name": called.get("name"), "arguments": arguments}
    return {
        **{name: None if values.get(name) is None else as_text(values[name]) for name in ("id", "type")},
        "function": {name: None if value is None else as_text(value) for name, value in texts.items()},
    }


def _sample_lines(
    item: EndedItem, samples: Sequence[Sample], messages: Messages, options: Rollout
) -> Iterator[dict[str, Any]]:
    texts = []
    for message in messages:  # one without a content has something else instead
        others = {name: value for name, value in message.items() if name != "role" and value is not None}
        texts.append(as_text(others) if message.get("content") is None else message["content"])
    ground_truth = ground_truth_of(item.columns, options)
    lost: Kept = {"text": None, "seed": None, "error": item.error, "finish_reason": None}
    pairs = zip(_samples(item) or [lost] * len(samples), samples, strict=True)
    for number, (kept, sample) in enumerate(pairs, 1):
        skipped = options.skip_unanswered and not sample.answered
        acc = sample.acc if sample.judged else 0.0
        yield {
            "input": "\n\n".join(texts),
            "output": kept["text"],
            "gts": ground_truth,
            "score": None if skipped else sample.score,
            "step": options.step,
            "custom_id": item.custom_id,
            "sample": number,
            "seed": kept["seed"],
            "data_source": data_source_of(item.columns),
            "acc": None if skipped else acc,
            "pred": sample.pred,
            **{name: kept.get(name) for name in ("finish_reason", "error", "reasoning", "tool_calls")},
        }
