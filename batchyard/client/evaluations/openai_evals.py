"""Evaluations as OpenAI's Evals API takes them: testing criteria, which are graders, over lines of JSON with `item`.

See https://platform.openai.com/docs/guides/evals. A document holds what an eval and its run have: `testing_criteria`,
and beside it `data_source` or `data`, `input_messages`, `model` and `sampling_params`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchyard.client import tables
from batchyard.client.evaluations import data
from batchyard.client.evaluations.evaluation import Evaluation, unread, written, wrong

KEYS = frozenset({"testing_criteria", "data_source_config", "data_source", "data", "input_messages", "model", "name"})
_SAMPLING = ("temperature", "top_p", "max_tokens", "max_completion_tokens")
_SIMILARITIES = {"bleu": "bleu", "rouge_1": "rouge-1", "rouge_2": "rouge-2", "rouge_l": "rouge-l"}
"""Rewards by OpenAI's name of a text similarity. `fuzzy_match` is a grader here, too."""
_PLACE = re.compile(r"\{\{\s*item\.([^{}\s]+)\s*\}\}")
_OUTPUT = re.compile(r"\{\{\s*sample\.output_text\s*\}\}")


def is_one(document: Mapping[str, Any]) -> bool:
    return "testing_criteria" in document


def read(document: Mapping[str, Any], file: Path, folder: Path) -> Evaluation:
    """Return the evaluation of a document."""
    run = document.get("data_source") or {}
    model = document.get("model", run.get("model"))
    asked = document.get("input_messages") or run.get("input_messages")
    if not isinstance(asked, Mapping) or not isinstance(asked.get("template"), list):
        raise wrong(file, "input_messages: it is {type: template, template: [messages]}")
    messages = [{"role": each.get("role", "user"), "content": _text(each)} for each in asked["template"]]
    sampling = run.get("sampling_params") or document.get("sampling_params") or {}
    criteria = document["testing_criteria"]
    if not isinstance(criteria, Sequence) or not criteria:
        raise wrong(file, "testing_criteria: they are a list of graders")
    metrics = [_metric(grader, f"testing_criteria.{at}", file) for at, grader in enumerate(criteria)]
    references = [str(grader.get("reference") or "") for grader in criteria if isinstance(grader, Mapping)]
    columns = [match[1] for reference in references if (match := _PLACE.fullmatch(reference.strip()))]
    options: dict[str, Any] = {"metrics": metrics, "ground_truth": columns[0] if columns else "answer"}
    options |= {} if model is None else {"model": model}
    if known := {name: sampling[name] for name in _SAMPLING if name in sampling}:
        options["sampling"] = {"temperature": 0, **known}
    rows = written(_rows(document, run, messages, file, folder), folder)
    return Evaluation(options, rows, document.get("name"), unread(document, KEYS | {"sampling_params", "metadata"}))


def _metric(grader: Any, place: str, file: Path) -> Any:
    if not isinstance(grader, Mapping) or not isinstance(grader.get("type"), str):
        raise wrong(file, f"{place}: a grader has a `type`")
    grader = dict(grader)
    measure = grader.get("evaluation_metric")
    if grader["type"] == "text_similarity" and measure != "fuzzy_match":
        column = _PLACE.fullmatch(str(grader.get("reference", "")).strip())
        if measure not in _SIMILARITIES or column is None or not _OUTPUT.fullmatch(str(grader.get("input")).strip()):
            kinds = ", ".join(["fuzzy_match", *_SIMILARITIES])
            raise wrong(
                file, f"{place}: {measure!r} is not read, or compares more than an answer and a column: {kinds}"
            )
        return {
            "metric": _SIMILARITIES[measure],
            "name": grader.get("name") or measure,
            "ground_truth": column[1],
        }
    if isinstance(grader.get("input"), list):
        grader["input"] = [{"role": each.get("role", "user"), "content": _text(each)} for each in grader["input"]]
    return grader


def _text(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whose content may be a part with one."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    return "".join(str(part["text"]) if isinstance(part, Mapping) and "text" in part else str(part) for part in parts)


def _rows(
    document: Mapping[str, Any],
    run: Mapping[str, Any],
    messages: Sequence[Mapping[str, str]],
    file: Path,
    folder: Path,
) -> Iterator[dict[str, Any]]:
    for number, item in enumerate(_items(document, run, file, folder), 1):
        if "messages" in item:
            raise wrong(file, f"item {number}: give `messages` another name; this one is a column's here")

        def value(match: re.Match[str], item: Mapping[str, Any] = item, number: int = number) -> str:
            if match[1] not in item:
                raise wrong(file, f"item {number}: it has no {match[1]!r}, which input_messages names")
            return str(item[match[1]])

        filled = [{"role": each["role"], "content": _PLACE.sub(value, each["content"])} for each in messages]
        yield {**item, "messages": filled}


def _items(
    document: Mapping[str, Any], run: Mapping[str, Any], file: Path, folder: Path
) -> Iterator[Mapping[str, Any]]:
    source = run.get("source") or {}
    if isinstance(source.get("content"), list):
        rows: Any = source["content"]
    elif document.get("data"):
        rows = tables.rows_of(data.source_of(file.parent / str(document["data"]), None, folder))
    else:
        raise wrong(file, "data: it names the file with the items; ids of OpenAI's files are not known here")
    for row in rows:
        item = row.get("item", row)
        yield item if isinstance(item, Mapping) else row
