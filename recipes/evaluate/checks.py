"""What is refused of options and rows before anything runs."""

from collections.abc import Iterable, Mapping
from typing import Any

from batchyard.recipes import InvalidItem
from batchyard.wording import nearest, quoted
from recipes.evaluate import judging
from recipes.evaluate.likelihood import choices_of
from recipes.evaluate.options import Evaluate
from recipes.evaluate.questions import turns_of
from recipes.evaluate.scoring import asserts_of, check_ignored, kind_of
from recipes.gates.answers import external
from recipes.options import check_extract, check_reward, option
from recipes.registry import Catalogue
from recipes.rollout.options import GROUND_TRUTH

RESERVED = frozenset(
    {"text", "counters", "code", "message", "samples", "question", "agreement", "questions", "answers", "unanswered"}
    | {"wrong", "metric_errors", "compared", "slices", "values"}
)
"""Names in results and metrics that no metric can have."""


def check(options: Evaluate, rewards: Catalogue) -> None:
    """Raise ValueError, with the path of the option, for options that cannot be."""
    if options.repeats > 1 and options.sampling.temperature == 0:
        raise ValueError("sampling.temperature: at 0 all repeats are the same; take repeats = 1, or raise it")
    if options.choices is not None and (options.judge or options.asserts or options.repeats > 1):
        raise ValueError("choices: they are measured by likelihood, once; leave out judge, asserts and repeats")
    if not options.labels:
        raise ValueError("metrics: nothing is measured; name a metric, `asserts` or a judge")
    for number, label in enumerate(options.labels):
        if label in options.labels[:number]:
            raise ValueError(f"metrics.{number}: two metrics are called {quoted(label)}; give one another `name`")
        if label in RESERVED:
            raise ValueError(
                f"metrics.{number}: {quoted(label)} has another meaning in reports; give it another `name`"
            )
    for number, metric in enumerate(options.metrics):
        path = f"metrics.{number}"
        check_extract(f"{path}.extract", metric.extract)
        with option(f"{path}.ignore"):
            check_ignored(metric.ignore)
        name = metric.metric
        if name.startswith("{") or name in rewards.rewards:
            check_reward(path, name, rewards)
        elif name not in rewards.gates or name == external.name:
            hint = _hint(name, [*rewards.rewards, *rewards.gates])
            raise ValueError(f"{path}: No reward and no gate is named {quoted(name)}.{hint}")
    check_extract("extract", options.extract)
    if options.judge is not None:
        judging.check(options.judge)
    if (few_shot := options.few_shot) is not None:
        if few_shot.n is not None and few_shot.n > len(few_shot.examples):
            raise ValueError(f"few_shot.n: {few_shot.n} of {len(few_shot.examples)} examples cannot be drawn")
        for number, example in enumerate(few_shot.examples):
            with option(f"few_shot.examples.{number}"):
                turns_of(example, options)


def _hint(name: str, names: Iterable[str]) -> str:
    near = nearest(name, names)
    return f" Did you mean '{near}'?" if near and near != name else ""


def needed_columns(options: Evaluate, row: Mapping[str, Any], rewards: Catalogue) -> list[str]:
    """Return the columns that a row's rewards read. Raises InvalidItem for choices or gates that are none."""
    if options.choices is not None:
        choices_of(row, options.choices)
        return [options.ground_truth]
    for entry in asserts_of(row, options.asserts) if options.asserts else ():
        column = str(options.asserts)
        name = entry["gate"]
        if name not in rewards.gates or name == external.name:
            hint = _hint(name, rewards.gates)
            message = f"The column '{column}' has {quoted(name)}, which no gate can be here.{hint}"
            raise InvalidItem("invalid_assert", message)
        gate = rewards.gates[name]
        if gate.check is not None:
            try:
                gate.check(entry["value"])
            except ValueError as error:
                raise InvalidItem("invalid_assert", f"The column '{column}' has gate {name}, which {error}.") from None
    paths: list[str] = []
    for metric in options.metrics:
        if kind_of(metric, rewards) != "gate":
            truth = metric.ground_truth or options.ground_truth
            columns = rewards.reward(metric.metric).columns
            paths += [truth if path == GROUND_TRUTH else path for path in columns]
    return list(dict.fromkeys(paths))
