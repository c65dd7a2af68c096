"""promptfoo's configuration: prompts and tests with assertions, which become rows with gates of their own.

See https://www.promptfoo.dev/docs/configuration/reference and …/expected-outputs. Providers are not asked: the model is
one of the server's.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchyard.client import tables
from batchyard.client.evaluations.evaluation import Evaluation, Templates, as_list, unread, written, wrong

KEYS = frozenset({"prompts", "tests", "defaultTest", "description", "evaluateOptions", "providers", "targets", "tags"})
_TEST_KEYS = frozenset({"vars", "assert", "description", "metadata"})
_ASSERT_KEYS = frozenset({"type", "value", "threshold", "weight", "metric", "provider", "assert"})
_PLAIN = frozenset(
    {"equals", "contains", "icontains", "contains-any", "contains-all", "regex", "starts-with", "is-json"}
    | {"contains-json", "finish-reason"}
)
"""Assertions that are gates by the same name with the same value."""
_RUBRICS = frozenset({"llm-rubric", "model-graded-closedqa"})
_CODE = frozenset({"javascript", "python", "ruby", "webhook"})
RESERVED = frozenset({"asserts", "rubric", "prompt_label", "prompt", "messages", "custom_id"})
_FILE = "file://"
_EXPECTED = re.compile(r"__expected(\d*)")
_SHORT = re.compile(r"(?P<type>(?:not-)?[a-z-]+)(?:\((?P<threshold>[\d.]+)\))?:\s*(?P<value>.*)", re.DOTALL)


def is_one(document: Mapping[str, Any]) -> bool:
    return "prompts" in document and "tests" in document


def read(document: Mapping[str, Any], file: Path, folder: Path) -> Evaluation:
    """Return the evaluation of a configuration."""
    reader = _Reader(document, file)
    rows = list(reader.rows())
    if not rows:
        raise wrong(file, "tests: there are none")
    options: dict[str, Any] = {"metrics": []}
    if any(row["asserts"] for row in rows):
        options["asserts"] = "asserts"
    if any(row["rubric"] for row in rows):
        options["judge"] = {"rubric": "{rubric}", "range": [0, 1], "passing": 1, **reader.judge()}
    if len(options) == 1:
        raise wrong(file, "tests: none has an assertion, so nothing would be measured")
    if len(reader.prompts) > 1:
        options["slices"] = ["prompt_label"]
    if (model := _model(as_list(document.get("providers", document.get("targets"))))) is not None:
        options["model"] = model
    repeat = (document.get("evaluateOptions") or {}).get("repeat", 1)
    if repeat > 1:
        options |= {"repeats": repeat, "sampling": {"temperature": 1.0}}
    return Evaluation(options, written(rows, folder), document.get("description"), unread(document, KEYS))


def _model(providers: Sequence[Any]) -> str | None:
    """Return the model that one provider names, `openai:chat:mini`; None for none or several."""
    if len(providers) != 1:
        return None
    (provider,) = providers
    if isinstance(provider, Mapping):
        provider = provider.get("id") or next(iter(provider), "")
    return str(provider).rpartition(":")[2] or None


class _Reader:
    def __init__(self, document: Mapping[str, Any], file: Path) -> None:
        self._file = file
        self._templates = Templates()
        self._default = self._loaded(document.get("defaultTest") or {}, "defaultTest")
        self._tests = document["tests"]
        self.prompts = [self._prompt(entry, at) for at, entry in enumerate(as_list(document["prompts"]))]
        self._graders: set[str] = set()

    def judge(self) -> dict[str, Any]:
        """Return the judge's model if the tests name one."""
        if len(self._graders) > 1:
            raise wrong(self._file, f"tests: several models judge: {', '.join(sorted(self._graders))}; name one")
        return {"model": self._graders.copy().pop()} if self._graders else {}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each prompt, test and combination of the variables that are lists."""
        for place, test in self._all_tests():
            if unknown := unread(test, _TEST_KEYS):
                raise wrong(self._file, f"{place}.{unknown[0]}: it is not read")
            own = self._loaded(test.get("vars") or {}, f"{place}.vars")
            if not isinstance(own, Mapping):
                raise wrong(self._file, f"{place}.vars: they are names with values")
            given = {**(self._default.get("vars") or {}), **own}
            if taken := sorted(RESERVED & given.keys()):
                raise wrong(self._file, f"{place}.vars.{taken[0]}: give it another name; this one is a column's here")
            entries = [*as_list(self._default.get("assert")), *as_list(test.get("assert"))]
            lists = [value if isinstance(value, list) else [value] for value in given.values()]
            for combination in itertools.product(*lists):  # as promptfoo does with lists of texts
                chosen = zip(given, combination, strict=True)
                values = {name: self._value(value, f"{place}.vars.{name}") for name, value in chosen}
                asserts, rubric = self._asserts(entries, values, place)
                common = {**values, **_scalars(test.get("metadata")), "asserts": asserts, "rubric": rubric}
                for label, prompt in self.prompts:
                    yield {**common, "prompt_label": label, **self._asked(prompt, values, f"{place}: prompt {label}")}

    # Prompts

    def _prompt(self, entry: Any, at: int) -> tuple[str, str]:
        label = None
        if isinstance(entry, Mapping):
            label, entry = entry.get("label"), entry.get("raw", entry.get("id"))
        if not isinstance(entry, str):
            raise wrong(self._file, f"prompts.{at}: a prompt is a text, a file, or has one as `raw`")
        if entry.startswith(_FILE):
            path = self._path(entry, f"prompts.{at}")
            if path.suffix in (".js", ".py", ".ts"):
                raise wrong(self._file, f"prompts.{at}: {path.name} is code, which is not run")
            return label or path.stem, path.read_text("utf-8")
        return label or f"prompt {at + 1}", entry

    def _asked(self, prompt: str, values: Mapping[str, Any], place: str) -> dict[str, Any]:
        """Return the prompt's column: messages if the filled text is a list of them."""
        text = self._templates.fill(prompt, values, f"{self._file}: {place}")
        if text.lstrip().startswith("["):
            try:
                return {"messages": json.loads(text)}
            except ValueError:
                pass
        return {"prompt": text}

    # Tests

    def _all_tests(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for at, entry in enumerate(as_list(self._tests)):
            if isinstance(entry, Mapping):
                yield f"tests.{at}", entry
                continue
            path = self._path(str(entry), f"tests.{at}")
            if path.suffix in (".yaml", ".yml", ".json"):
                for inner, test in enumerate(as_list(self._yaml(path))):
                    yield f"{path.name}.{inner}", test
            else:
                for number, row in enumerate(tables.rows_of(path), 1):
                    yield f"{path.name}, row {number}", row if "vars" in row else _of_cells(row)

    def _value(self, value: Any, place: str) -> Any:
        if isinstance(value, str) and value.startswith(_FILE):
            return self._path(value, place).read_text("utf-8")
        return value

    def _loaded(self, value: Any, place: str) -> Any:
        return self._yaml(self._path(value, place)) if isinstance(value, str) else value

    def _yaml(self, path: Path) -> Any:
        import yaml

        try:
            return yaml.safe_load(path.read_text("utf-8"))
        except yaml.YAMLError as error:
            raise wrong(path, str(error)) from None

    def _path(self, name: str, place: str) -> Path:
        path = self._file.parent / name.removeprefix(_FILE)
        if not path.is_file():
            raise wrong(self._file, f"{place}: there is no file {path}")
        return path

    # Assertions

    def _asserts(
        self, entries: Sequence[Any], values: Mapping[str, Any], place: str
    ) -> tuple[list[dict[str, Any]], str | None]:
        gates: list[dict[str, Any]] = []
        rubrics: list[str] = []
        for at, entry in enumerate(entries):
            where = f"{place}.assert.{at}"
            if not isinstance(entry, Mapping) or not isinstance(entry.get("type"), str):
                raise wrong(self._file, f"{where}: an assertion has a `type`")
            if unknown := unread(entry, _ASSERT_KEYS - ({"threshold"} if entry["type"] == "assert-set" else set())):
                raise wrong(self._file, f"{where}.{unknown[0]}: it is not read")
            if entry["type"] == "assert-set":
                inner, rubric = self._asserts(as_list(entry.get("assert")), values, where)
                gates += inner
                rubrics += [rubric] if rubric else []
            elif entry["type"] in _RUBRICS:
                rubrics.append(self._filled(entry.get("value"), values, where))
                if entry.get("provider"):
                    self._graders.add(str(_model([entry["provider"]])))
            else:
                gates.append(self._gate(entry, values, where))
        return gates, "\n".join(rubrics) or None

    def _gate(self, entry: Mapping[str, Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
        name, threshold = entry["type"], entry.get("threshold")
        base = name.removeprefix("not-")
        gate: dict[str, Any] = {"gate": name, "value": self._filled(entry.get("value"), values, where)}
        if base == "levenshtein":
            gate["value"] = {"text": gate["value"], "most": 5 if threshold is None else threshold}
        elif base == "latency":
            gate["value"] = f"{threshold}ms"
        elif base not in _PLAIN:
            reason = "it runs code" if base in _CODE else "it has no counterpart here"
            raise wrong(self._file, f"{where}: {name!r} is not read: {reason}; leave it out, or write a gate")
        weight = entry.get("weight", 1)
        return gate if weight == 1 else {**gate, "weight": weight}

    def _filled(self, value: Any, values: Mapping[str, Any], where: str) -> Any:
        if isinstance(value, str):
            return self._templates.fill(value, values, f"{self._file}: {where}")
        return [self._filled(each, values, where) for each in value] if isinstance(value, list) else value


def _scalars(metadata: Any) -> dict[str, Any]:
    values = metadata if isinstance(metadata, Mapping) else {}
    return {name: value for name, value in values.items() if name not in RESERVED and not isinstance(value, dict)}


def _of_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the test of a row of csv: columns `__expected`, `__expected2` are assertions, others variables."""
    asserts = [
        _of_text(str(cell)) for name, cell in row.items() if _EXPECTED.fullmatch(name) and cell not in (None, "")
    ]
    values = {name: cell for name, cell in row.items() if not name.startswith("__")}
    description = row.get("__description")
    return {"vars": values, "assert": asserts} | ({"description": description} if description else {})


def _of_text(text: str) -> dict[str, Any]:
    """Return the assertion of a cell: `contains:word`, `levenshtein(3):word`, or the text that is expected."""
    match = _SHORT.fullmatch(text)
    if match is None or (match["type"].removeprefix("not-") not in _PLAIN | {"levenshtein", "llm-rubric", "latency"}):
        if match is not None and match["type"] == "grade":
            return {"type": "llm-rubric", "value": match["value"]}
        return {"type": "equals", "value": text}
    kind, value = match["type"], match["value"]
    several = kind.removeprefix("not-") in ("contains-any", "contains-all")
    entry: dict[str, Any] = {"type": kind, "value": [part.strip() for part in value.split(",")] if several else value}
    return entry | ({"threshold": float(match["threshold"])} if match["threshold"] else {})
