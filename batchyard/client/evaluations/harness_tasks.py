"""Task files of lm-evaluation-harness over local data, of output types `generate_until` and `multiple_choice`.

See docs/writing_tasks/task_config_reference.md of its repository. Prompts are filled here, with few-shot examples drawn
once for all questions. What needs Python (`!function`, process_docs) or a hub is refused: `batchyard lm-eval` runs such
tasks with the harness itself.
"""

import ast
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from batchyard.client import tables
from batchyard.client.evaluations import data
from batchyard.client.evaluations.evaluation import Evaluation, Templates, as_list, unread, written, wrong

KEYS = frozenset(
    {"task", "dataset_path", "dataset_kwargs", "output_type", "training_split", "validation_split", "test_split"}
    | {"fewshot_split", "num_fewshot", "fewshot_config", "description", "doc_to_text", "doc_to_target", "doc_to_choice"}
    | {"target_delimiter", "fewshot_delimiter", "generation_kwargs", "metric_list", "filter_list", "repeats", "include"}
)
_NO_EFFECT = frozenset(
    {"tag", "task_alias", "group", "metadata", "should_decontaminate", "doc_to_decontamination_query", "dataset_name"}
    | {"batch_size", "version"}
)
"""Keys that change nothing that is measured of local data."""
_METRICS = {
    "exact_match": "exact",
    "f1": "f1",
    "bleu": "bleu",
    "rouge1": "rouge-1",
    "rouge2": "rouge-2",
    "rougeL": "rouge-l",
}
_LOADERS = ("json", "csv", "parquet", "arrow", "text")
_SEED = 1234
"""The harness's default seed of few-shot examples."""
FUNCTION = "!function"


def is_one(document: Mapping[str, Any]) -> bool:
    return "doc_to_text" in document and ("dataset_path" in document or "include" in document)


def read(document: Mapping[str, Any], file: Path, folder: Path) -> Evaluation:
    """Return the evaluation of a task."""
    from batchyard.client.evaluations.documents import parsed

    merged: dict[str, Any] = {}
    seen = {file.resolve()}
    chain = [(dict(document), file)]
    while (base := chain[-1][0].get("include")) is not None:
        path = chain[-1][1].parent / str(base)
        if path.resolve() in seen:
            raise wrong(file, f"include: {path} includes itself")
        seen.add(path.resolve())
        chain.append((parsed(path), path))
    for values, _ in reversed(chain):
        merged |= values
    task = _HarnessTask(merged, file, folder)
    choices = task.output_type == "multiple_choice"
    options: dict[str, Any] = {"ground_truth": "target"}
    if choices:
        task.check_metrics(("acc", "acc_norm"))
        options |= {"choices": "choices", "metrics": []}
    else:
        options |= {"metrics": task.metrics(), "sampling": task.sampling()}
        if task.repeats > 1:
            options["repeats"] = task.repeats
    ignored = unread(task.document, KEYS | _NO_EFFECT)
    if ignored:
        raise wrong(file, f"{ignored[0]}: it is not read; `batchyard lm-eval` runs the task with the harness itself")
    return Evaluation(options, written(task.rows(choices), folder), task.document.get("task"))


class _HarnessTask:
    def __init__(self, document: dict[str, Any], file: Path, folder: Path) -> None:
        self.document = document
        self._file = file
        self._folder = folder
        self._templates = Templates()
        for key, value in document.items():
            if FUNCTION in str(value):
                raise wrong(file, f"{key}: Python functions are not run here; `batchyard lm-eval` runs the task")
        self.output_type = document.get("output_type", "generate_until")
        if self.output_type not in ("generate_until", "multiple_choice"):
            raise wrong(file, f"output_type: {self.output_type!r} is not read; `batchyard lm-eval` runs the task")
        self.repeats = int(document.get("repeats", 1))
        self._delimiter = str(document.get("target_delimiter", " "))

    # Rows

    def rows(self, choices: bool) -> Iterator[dict[str, Any]]:
        """Yield a row for each document: its columns, `prompt`, `target`, and maybe `choices`."""
        before = self._before(choices)
        for number, doc in enumerate(self._docs(self._split()), 1):
            place = f"document {number}"
            row: dict[str, Any] = {**doc, "prompt": before + self._text(doc, place)}
            row.pop("messages", None)
            if choices:
                row["choices"] = [self._delimiter + choice for choice in self._choices(doc, place)]
                row["target"] = self._place_of(doc, place)
            else:
                row["target"] = self._target(doc, place)
            yield row

    def _before(self, choices: bool) -> str:
        """Return the description and the few-shot examples, which stand before each question."""
        config = self.document.get("fewshot_config") or {}
        if unknown := unread(config, ("sampler", "split", "samples")):
            raise wrong(self._file, f"fewshot_config.{unknown[0]}: it is not read")
        description = self._templates.fill(self.document.get("description") or "", {}, f"{self._file}: description")
        number = int(self.document.get("num_fewshot") or 0)
        if not number:
            return description
        docs = config.get("samples")
        if not docs:
            names = ("fewshot_split", "training_split", "validation_split")
            given = next((self.document[name] for name in names if self.document.get(name)), None)
            split = config.get("split") or given
            if split is None or split == self._split():
                raise wrong(
                    self._file, "num_fewshot: examples come from `fewshot_split`, another one than is evaluated"
                )
            docs = list(self._docs(split))
        if number > len(docs):
            raise wrong(self._file, f"num_fewshot: {number} of {len(docs)} examples cannot be drawn")
        drawn = docs[:number] if config.get("sampler") == "first_n" else Random(_SEED).sample(docs, number)
        shots = []
        for at, doc in enumerate(drawn):
            place = f"example {at + 1}"
            answer = self._choices(doc, place)[self._place_of(doc, place)] if choices else str(self._target(doc, place))
            shots.append(self._text(doc, place) + self._delimiter + answer)
        between = self.document.get("fewshot_delimiter", "\n\n")
        return description + "".join(shot + between for shot in shots)

    def _text(self, doc: Mapping[str, Any], place: str) -> str:
        return str(self._value("doc_to_text", doc, place))

    def _target(self, doc: Mapping[str, Any], place: str) -> Any:
        value = self._value("doc_to_target", doc, place)
        return [str(each) for each in value] if isinstance(value, list) else str(value)

    def _choices(self, doc: Mapping[str, Any], place: str) -> list[str]:
        value = self._value("doc_to_choice", doc, place)
        if isinstance(value, str):
            with contextlib.suppress(ValueError, SyntaxError):
                value = ast.literal_eval(value)  # what a template makes of a list
        if not isinstance(value, list) or len(value) < 2:
            raise wrong(self._file, f"doc_to_choice, {place}: it gives no list of choices, but {value!r}")
        return [str(each) for each in value]

    def _place_of(self, doc: Mapping[str, Any], place: str) -> int:
        """Return which choice is right: the target is its place, or its text."""
        value, choices = self._value("doc_to_target", doc, place), self._choices(doc, place)
        if str(value) in choices:
            return choices.index(str(value))
        if str(value).strip().isdecimal() and int(str(value)) < len(choices):
            return int(str(value))
        raise wrong(self._file, f"doc_to_target, {place}: {value!r} is none of {choices}, and no place of one")

    def _value(self, key: str, doc: Mapping[str, Any], place: str) -> Any:
        """Return what a key makes of a document: a column, a template, or the value itself."""
        how = self.document.get(key)
        if how is None:
            raise wrong(self._file, f"{key}: it is missing")
        if not isinstance(how, str):
            return how
        if how in doc:
            return doc[how]
        return self._templates.fill(how, doc, f"{self._file}: {key}, {place}")

    # Data

    def _split(self) -> str:
        split = self.document.get("test_split") or self.document.get("validation_split")
        if not split:
            raise wrong(self._file, "test_split: it says what is evaluated")
        return str(split)

    def _docs(self, split: str) -> Iterator[dict[str, Any]]:
        path, kwargs = str(self.document.get("dataset_path")), self.document.get("dataset_kwargs") or {}
        files = kwargs.get("data_files")
        if isinstance(files, Mapping):
            if split not in files:
                raise wrong(self._file, f"dataset_kwargs.data_files: there is no split {split!r}")
            files = files[split]
        if path in _LOADERS and files is None:
            raise wrong(self._file, "dataset_kwargs.data_files: it names the files")
        places = as_list(files) if files is not None else [kwargs.get("data_dir") or path]
        for place in places:
            folder = self._place(str(place))
            yield from tables.rows_of(data.source_of(folder, split if folder.is_dir() else None, self._folder))

    def _place(self, name: str) -> Path:
        for path in (self._file.parent / name, Path(name)):
            if path.exists():
                return path
        raise wrong(
            self._file,
            f"dataset_path: {name} is no file or folder of this machine; only local data is read here, and "
            "`batchyard lm-eval` runs tasks of a hub",
        )

    # What is measured

    def check_metrics(self, known: Sequence[str]) -> None:
        """Raise ConfigurationError for a metric that is none of these."""
        for at, entry in enumerate(self.document.get("metric_list") or []):
            if entry.get("metric") not in known:
                raise wrong(
                    self._file,
                    f"metric_list.{at}: {entry.get('metric')!r} is not supported; available: {', '.join(known)}",
                )

    def metrics(self) -> list[dict[str, Any]]:
        self.check_metrics(list(_METRICS))
        entries = self.document.get("metric_list") or [{"metric": "exact_match"}]
        metrics = []
        for name, extract in self._filters():
            for entry in entries:
                ignore = [kind for kind in ("case", "punctuation", "numbers") if entry.get(f"ignore_{kind}")]
                ignore += [f"regex:{pattern}" for pattern in entry.get("regexes_to_ignore") or []]
                label = entry["metric"] if name is None else f"{entry['metric']},{name}"
                metric = {"metric": _METRICS[entry["metric"]], "name": label, "extract": extract, "ignore": ignore}
                metrics.append({key: value for key, value in metric.items() if value})
        return metrics

    def _filters(self) -> list[tuple[str | None, str | None]]:
        """Return name and extract of each filter; one without both if there are none."""
        filters: list[tuple[str | None, str | None]] = []
        for at, pipeline in enumerate(self.document.get("filter_list") or []):
            extract = None
            for step in pipeline.get("filter") or []:
                function = step.get("function")
                if function == "regex":
                    last = step.get("group_select", 0) == -1
                    pattern = step.get("regex_pattern", r"#### (\-?[0-9\.\,]+)")
                    extract = f"{'last_regex' if last else 'regex'}:{pattern}"
                elif function not in ("take_first", "remove_whitespace"):
                    raise wrong(self._file, f"filter_list.{at}: {function!r} is not read; `batchyard lm-eval` runs it")
            filters.append((str(pipeline.get("name", at)), extract))
        return filters or [(None, None)]

    def sampling(self) -> dict[str, Any]:
        values = dict(self.document.get("generation_kwargs") or {})
        stop = as_list(values.pop("until", None))
        tokens = values.pop("max_gen_toks", 256)
        temperature = values.pop("temperature", 0.0) if values.pop("do_sample", False) or self.repeats > 1 else 0.0
        values.pop("temperature", None)
        known = {name: values.pop(name) for name in ("top_p", "top_k", "min_p") if name in values}
        if values:
            raise wrong(self._file, f"generation_kwargs.{next(iter(values))}: it is not read")
        sampling = {"temperature": temperature, "max_tokens": tokens, **known}
        return sampling | ({"stop": stop} if stop else {})
