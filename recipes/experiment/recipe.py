"""Recipe `experiment`: variants of a recipe's options over one input, repeated, in rounds, and compared."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, create_model

from batchyard import config
from batchyard.recipes import BASIC, Child, CompositeOptions, EndedItem, Judgement, Report, Results, composite
from batchyard.wording import quoted, suggestion
from recipes.experiment import plots, reports
from recipes.experiment.comparison import compare
from recipes.experiment.expressions import parse
from recipes.experiment.values import ComparedChild
from recipes.options import nested, option
from recipes.reports import json_text, write

MOST = 1000
"""Children of one experiment."""
MODELS = frozenset({"model", "models", "tiers", "judge", "reviewer", "arbiter"})
"""Options of recipes, at any depth, whose texts are names of models."""
Variant = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=64)]
Values = dict[str, Any]


class _Experiment(CompositeOptions):
    recipe: str = Field(description="Recipe of the children")
    options: Values = Field(
        {},
        description="Options of all children; keys may have dots, as in sampling.temperature",
        json_schema_extra=BASIC,
    )
    variants: dict[Variant, Values] = Field(
        min_length=1,
        description="{name: {option: value}}: what is different in each; keys may have dots",
    )
    tiers: dict[str, str] = Field(
        {}, description="{name: model}: names that stand for models in the children's options"
    )
    baseline: str | None = Field(None, description="Variant that the others are compared with", json_schema_extra=BASIC)
    repeats: int = Field(
        1,
        ge=1,
        le=MOST,
        description="Jobs of each variant; repeat r, from 0, has the seed + r",
        json_schema_extra=BASIC,
    )
    rounds: int = Field(1, ge=1, le=MOST, description="Jobs one after the other, each with an artifact of the last")
    round_input: str | None = Field(
        None, min_length=1, max_length=128, description="Artifact of a round's job that is the next one's input"
    )
    expect: Judgement[list[str]] = Field(
        [], description="What should come out, such as `big.mean@8 > small.mean@8`; the report says whether it has"
    )

    def place(self, variant: str, path: str) -> str:
        """Return where the option of a child at a path stands: `options.variants.big.n` for `options.n`."""
        name = path.removeprefix("options").removeprefix(".")
        if path == "recipe":
            return "options.recipe"
        keys = [".".join(config.path(key)) for key in self.variants[variant]]
        related = any(f"{key}.".startswith(f"{name}.") or f"{name}.".startswith(f"{key}.") for key in keys)
        return ".".join(["options", *(("variants", variant) if related else ("options",)), *([name] if name else [])])


_PASS: dict[str, Any] = {
    "pass": (
        Judgement[list[str]],
        Field([], description="As `expect`, and the command ends with 1 unless each of them holds"),
    )
}
"""A field whose name, which people know, is a keyword of Python."""
Experiment = create_model("Experiment", __base__=_Experiment, __doc__="Options of `experiment`.", **_PASS)


def check(options: _Experiment) -> None:
    """Raise ValueError, with the path of the option, for options that cannot be."""
    names = list(options.variants)
    if options.baseline is not None and options.baseline not in options.variants:
        remedy = suggestion(options.baseline, names)
        raise ValueError(f"baseline: no variant is named {quoted(options.baseline)}; {remedy}")
    if (options.rounds > 1) != (options.round_input is not None):
        raise ValueError("round_input: more than one round, and the artifact that the next one takes, go together")
    number = len(names) * options.repeats * options.rounds
    if number > MOST:
        raise ValueError(f"repeats: {number:,} jobs would be started, and {MOST:,} are the most; take fewer")
    variants = {f"variants.{name}": values for name, values in options.variants.items()}
    for place, values in {"options": options.options, **variants}.items():
        for key in values:
            with option(place):
                config.path(key)
    for place, expressions in (("expect", options.expect), ("pass", getattr(options, "pass"))):
        for index, text in enumerate(expressions):
            with option(f"{place}.{index}"):
                parse(text, names)


def _served(value: Any, tiers: Mapping[str, str], *, is_model: bool) -> Any:
    if isinstance(value, Mapping):
        return {key: _served(inner, tiers, is_model=key in MODELS) for key, inner in value.items()}
    if isinstance(value, list):
        return [_served(inner, tiers, is_model=is_model) for inner in value]
    return tiers.get(value, value) if is_model and isinstance(value, str) else value


def finish(results: Results, options: _Experiment) -> Report:
    """Compare the children, write the artifacts, and return the metrics."""
    items = list(results.items())
    children = [_child(results, item) for item in items]
    document = compare(children, options.baseline, options.expect, getattr(options, "pass"))
    texts = {
        "comparison.json": json_text(document),
        "comparison.csv": reports.csv_of(document),
        "comparison.md": reports.comparison(document),
        "final_report.json": json_text({name: value for name, value in document.items() if name != "rounds"}),
        "final_report.md": reports.final(document),
    }
    write(results, texts | {f"plot-{name}.svg": svg for name, svg in plots.of(document).items()})
    states = [item.state for item in items]
    metrics = {
        "children": len(items),
        "completed": states.count("completed"),
        "failed": states.count("failed"),
        "taken": sum(bool(item.result.get("taken")) for item in items),
        "passed": document["passed"],
    }
    warnings = [(warning["code"], warning["message"]) for warning in document["warnings"]]
    return Report(metrics, reports.view(document), warnings)


def _child(results: Results, item: EndedItem) -> ComparedChild:
    """Return a child with what it has left behind."""
    job_id, error = item.result.get("job_id"), item.error or {}

    def copied(name: str) -> Path | None:
        return None if job_id is None else results.of_child(job_id, name)

    def read(name: str) -> Values:
        path = copied(name)
        return {} if path is None else dict(json.loads(path.read_bytes()))

    return ComparedChild(
        **{name: item.columns[name] for name in ("variant", "repeat", "round")},
        job_id=job_id or "",
        config_sha256=item.result.get("config_sha256") or "",
        manifest=read("manifest.json"),
        metrics=read("metrics.json"),
        journal=copied("journal.parquet"),
        results=copied("results.jsonl"),
        status=item.result.get("status") or item.state,
        error=error.get("message"),
    )


@composite("experiment", Experiment, check=check, finish=finish, main="comparison.json")
def experiment(options: _Experiment) -> Sequence[Child]:
    """Compare variants of a recipe's options on one input."""
    values: dict[str, Values] = {
        variant: _served(nested(options.options, own), options.tiers, is_model=False)
        for variant, own in options.variants.items()
    }
    return [
        Child(variant, repeat, number, options.recipe, values[variant], options.round_input if number else None)
        for number in range(options.rounds)
        for repeat in range(options.repeats)
        for variant in options.variants
    ]
