"""What recipe `rollout` leaves behind: rollouts.parquet, samples.jsonl, preferences.jsonl, best.jsonl, metrics, view.

`rollouts.parquet` has the input's columns, those that verl reads and the input lacks (`verl/utils/dataset`), and the
samples. `samples.jsonl` has the keys of verl's dump of generations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import IO, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from batchyard import json_lines
from batchyard.recipes import EndedItem, Messages, Report, Results, messages_of
from recipes.measures.tally import Sample, all_binary, is_judged, samples_of
from recipes.rollout.metrics import Summary
from recipes.rollout.options import RewardOptions, Rollout, data_source_of, ground_truth_of

Kept: TypeAlias = Mapping[str, Any]
"""A sample as the item's result keeps it."""

SAMPLES = pa.schema(
    [
        ("responses", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float64())),
        ("finish_reasons", pa.list_(pa.string())),
        ("seeds", pa.list_(pa.int64())),
        ("output_tokens", pa.list_(pa.int64())),
        ("unanswered", pa.int64()),
        ("reasonings", pa.list_(pa.string())),
    ]
)
LOGPROBS = pa.field("logprobs", pa.list_(pa.list_(pa.float64())))
RESPONSE_IDS = pa.field("response_ids", pa.list_(pa.list_(pa.int32())))
COLUMNS = (*SAMPLES.names, LOGPROBS.name, RESPONSE_IDS.name)
"""Names that no column of the input may have."""
PROMPT = pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))
_CALL = pa.struct(
    [
        ("id", pa.string()),
        ("type", pa.string()),
        ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())])),
    ]
)
PROMPT_WITH_TOOLS = pa.list_(
    pa.struct(
        [
            *(("content", pa.string()), ("role", pa.string()), ("name", pa.string()), ("refusal", pa.string())),
            *(("tool_call_id", pa.string()), ("tool_calls", pa.list_(_CALL))),
        ]
    )
)
"""Of prompts with more than texts in a message."""
READ_BY_VERL = {
    "data_source": pa.string(),
    "prompt": PROMPT,
    "ability": pa.string(),
    "reward_model": pa.struct([("ground_truth", pa.string()), ("style", pa.string())]),
    "extra_info": pa.struct([("index", pa.int64()), ("split", pa.string())]),
}
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
            line_of = _best if options.keep == "best" else _preference
            for file in more:
                if chosen := line_of(messages, [sample for sample in _samples(item) if is_judged(sample)]):
                    file.write(json_lines.line(chosen))

        with results.create("rollouts.parquet") as file:
            _write_rollouts(file, results, options, PROMPT if plain else PROMPT_WITH_TOOLS, add)
    return summary.report()


def _samples(item: EndedItem) -> list[Kept]:
    samples: list[Kept] = item.result.get("samples") or []
    return samples


def _is_answered(sample: Kept) -> bool:
    return sample["text"] is not None


# Parquet


def _write_rollouts(
    file: IO[bytes], results: Results, options: Rollout, prompt: pa.DataType, add: Callable[[EndedItem], None]
) -> None:
    """Write a row for each item, in the order of the input. `add` gets each item once."""
    items = results.items()
    writer: pq.ParquetWriter | None = None
    try:
        for table in results.tables():
            start = 0
            for block in _blocks(islice(items, table.num_rows)):
                for item in block:
                    add(item)
                columns = table.slice(start, len(block))
                start += len(block)
                rows = _rows(columns, block, options, prompt)
                writer = writer or pq.ParquetWriter(file, rows.schema, compression="zstd")
                writer.write_table(rows)
        if writer is None:
            writer = pq.ParquetWriter(file, _rows(pa.table({}), [], options, prompt).schema)
    finally:
        if writer is not None:
            writer.close()


def _blocks(items: Iterator[EndedItem]) -> Iterator[list[EndedItem]]:
    block, size = [], 0
    for item in items:
        block.append(item)
        size += sum(len(sample["text"] or "") for sample in _samples(item))
        if size > BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def with_read_by_verl(
    columns: pa.Table, items: Sequence[EndedItem], options: RewardOptions, prompt: pa.DataType
) -> pa.Table:
    """Return the input's columns and those that verl reads. A column `prompt` of texts becomes one of messages."""
    for name, kind in (READ_BY_VERL | {"prompt": prompt}).items():
        place = columns.schema.get_field_index(name)
        if place == -1:
            columns = columns.append_column(name, _read_by_verl(name, kind, items, options))
        elif name == "prompt" and columns.schema.field(place).type in (pa.string(), pa.large_string()):
            columns = columns.set_column(place, name, _read_by_verl(name, kind, items, options))
    return columns


def _rows(columns: pa.Table, items: Sequence[EndedItem], options: Rollout, prompt: pa.DataType) -> pa.Table:
    columns = with_read_by_verl(columns, items, options, prompt)
    answered = [[sample for sample in _samples(item) if _is_answered(sample)] for item in items]
    for field in [
        *SAMPLES,
        *([LOGPROBS] if options.logprobs else []),
        *([RESPONSE_IDS] if options.response_ids else []),
    ]:
        key = _KEYS.get(field.name, field.name)
        values: list[Any] = [[sample.get(key) for sample in samples] for samples in answered if key]
        if field.name == "unanswered":
            sizes = [len(_samples(item)) or options.n for item in items]
            values = [number - len(samples) for number, samples in zip(sizes, answered, strict=True)]
        columns = columns.append_column(field, pa.array(values, field.type))
    return columns


_KEYS = {
    "responses": "text",
    "scores": "score",
    "finish_reasons": "finish_reason",
    "seeds": "seed",
    "unanswered": "",
    "reasonings": "reasoning",
}
"""Keys of a kept sample by the column that it becomes."""


def _read_by_verl(name: str, kind: pa.DataType, items: Sequence[EndedItem], options: RewardOptions) -> pa.Array:
    """Return a column that verl reads, for an input without it."""
    value: dict[str, Callable[[EndedItem], Any]] = {
        "data_source": lambda item: data_source_of(item.columns),
        "prompt": lambda item: [typed(message) for message in asked_of(item, options)],
        "ability": lambda item: "unknown",
        "reward_model": lambda item: {"ground_truth": _text(ground_truth_of(item.columns, options)), "style": "rule"},
        "extra_info": lambda item: {"index": item.number, "split": "unknown"},
    }
    return pa.array([value[name](item) for item in items], kind)


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
    return _text(value)


def typed(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with the types of PROMPT_WITH_TOOLS: arguments of calls may be objects, for example."""
    typed = {name: value if value is None else _text(value) for name, value in message.items() if name != "tool_calls"}
    calls = message.get("tool_calls")
    return typed | {"tool_calls": [_call(call) for call in calls] if isinstance(calls, list) else None}


def _call(call: Any) -> dict[str, Any]:
    values = call if isinstance(call, Mapping) else {}
    called = values.get("function", values.get("custom"))
    called = called if isinstance(called, Mapping) else {}
    arguments = called.get("arguments", called.get("input"))
    texts = {"name": called.get("name"), "arguments": arguments}
    return {
        **{name: None if values.get(name) is None else _text(values[name]) for name in ("id", "type")},
        "function": {name: None if value is None else _text(value) for name, value in texts.items()},
    }


def _said(message: Mapping[str, Any]) -> str:
    """Return the text of a message, or what it has instead of one."""
    content: str | None = message.get("content")
    if content is not None:
        return content
    return _text({name: value for name, value in message.items() if name != "role" and value is not None})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_lines.dumps(value).decode()


# JSON lines


def _sample_lines(
    item: EndedItem, samples: Sequence[Sample], messages: Messages, options: Rollout
) -> Iterator[dict[str, Any]]:
    text = "\n\n".join(map(_said, messages))
    ground_truth = ground_truth_of(item.columns, options)
    lost: Kept = {"text": None, "seed": None, "error": item.error, "finish_reason": None}
    pairs = zip(_samples(item) or [lost] * len(samples), samples, strict=True)
    for number, (kept, sample) in enumerate(pairs, 1):
        skipped = options.skip_unanswered and not sample.answered
        acc = sample.acc if sample.judged else 0.0
        yield {
            "input": text,
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
            "finish_reason": kept.get("finish_reason"),
            "error": kept["error"],
            "reasoning": kept.get("reasoning"),
            "tool_calls": kept.get("tool_calls"),
        }


def _best(messages: Messages, samples: Sequence[Kept]) -> dict[str, Any] | None:
    """Return the first sample with the highest score."""
    if not samples:
        return None
    best = max(samples, key=lambda sample: sample["score"])
    return {"prompt": messages, "response": best["text"], "score": best["score"]}


def _preference(messages: Messages, samples: Sequence[Kept]) -> dict[str, Any] | None:
    """Return the first best and the first worst sample, as messages; None if all scores are equal."""
    if not samples:
        return None
    best = max(samples, key=lambda sample: sample["score"])
    worst = min(samples, key=lambda sample: sample["score"])
    if best["score"] == worst["score"]:
        return None
    chosen, rejected = ([{"role": "assistant", "content": sample["text"]}] for sample in (best, worst))
    return {"prompt": messages, "chosen": chosen, "rejected": rejected}
