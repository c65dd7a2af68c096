"""Options of recipe `evaluate`."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from batchyard.recipes import BASIC, ColumnName, Judgement, NestedOptions, Options
from recipes.gates import parse
from recipes.options import GreedySampling, as_model
from recipes.rewards import graders

MOST_EXAMPLES = 1000
"""Rows that examples are drawn from."""
JUDGE = "judge"
ASSERTS = "asserts"
ACC, ACC_NORM = "acc", "acc_norm"
"""Names of metrics that options other than `metrics` make; those of `choices` are lm-evaluation-harness's."""


def _as_metric(value: Any) -> Any:
    if isinstance(value, str):
        name, parameter = parse(value)
        return {"metric": name, "value": parameter}
    if isinstance(value, Mapping) and "type" in value:
        return {"metric": json.dumps(value, sort_keys=True), "name": value.get("name") or value["type"]}
    return value


class MetricOptions(NestedOptions):
    """What is measured of an answer."""

    metric: str = Field(description="A reward or a gate by its name, or the JSON of a grader")
    name: str | None = Field(None, description="What it is called in reports")
    value: Any = Field(None, description="Of a gate: what it compares with")
    extract: str | None = Field(None, description="Of a reward: in place of the option `extract`")
    ground_truth: ColumnName[str | None] = Field(None, description="Of a reward: in place of the option `ground_truth`")
    ignore: list[str] = Field(
        [], description="Of a reward, what both texts are without: case, punctuation, articles, numbers, regex:…"
    )

    @property
    def label(self) -> str:
        return self.name or self.metric

    @property
    def grader(self) -> graders.ModelGrader | None:
        """The grader, if it asks a model."""
        return graders.of_model(self.metric)


Metric = Annotated[
    MetricOptions, BeforeValidator(_as_metric, json_schema_input_type=str | MetricOptions | dict[str, Any])
]


class FewShotOptions(NestedOptions):
    """Solved questions that stand before each question, as turns of the chat."""

    examples: list[dict[str, Any]] = Field(
        min_length=1, max_length=MOST_EXAMPLES, description="Rows with the columns of the input"
    )
    n: int | None = Field(None, ge=1, description="How many of them are shown; default: all")
    seed: int = Field(0, description="What draws them. All questions have the same, but for one that is the question")
    answer: str | None = Field(None, description="Text of an example's answer; default: the column `ground_truth`")


class PeopleOptions(NestedOptions):
    """Answers that people have judged, so that the judge can be compared with them."""

    answer: ColumnName[str] = Field(
        description="Column with the answer that people judged; a row without one is left out"
    )
    verdict: ColumnName[str] = Field(
        description="Column with their verdict: a mark; with `passing` pass or fail; with `against` win, tie or loss"
    )


class EvaluationJudge(NestedOptions):
    """A model that marks each answer, or compares it with another one in both orders."""

    model: str
    rubric: str | None = Field(None, description="What a good answer is: a text with columns in braces")
    against: ColumnName[str | None] = Field(None, description="Column with the answer that each is compared with")
    range: tuple[int, int] = Field((1, 10), description="Lowest and highest mark")
    passing: int | None = Field(None, description="The least mark of a right answer; the score is 0 or 1 then")
    structured: bool = Field(True, description="Hold the judge to the form of its answers; false: where no engine can")
    prompt: str | None = Field(None, description="What it is asked, with {task}, {answer}, {reference}, {rubric} …")
    max_tokens: int | None = Field(None, ge=1)
    people: PeopleOptions | None = None


class Evaluate(Options):
    """Options of `evaluate`."""

    model: str = Field(description="Model that answers")
    metrics: Judgement[list[Metric]] = Field(
        [MetricOptions(metric="exact")],
        max_length=32,
        description="Rewards or gates as `name:value`, objects, or graders. The first says what is right",
        json_schema_extra=BASIC,
    )
    ground_truth: Judgement[ColumnName[str]] = Field(
        "answer", description="Column with the right answer, dots for fields within", json_schema_extra=BASIC
    )
    extract: Judgement[str | None] = Field(
        None,
        description="What rewards get of an answer: last_number, first_line, boxed, json:…, regex:…",
        json_schema_extra=BASIC,
    )
    sampling: GreedySampling = Field(
        default_factory=GreedySampling,
        description="Temperature, top_p, max_tokens and the like",
        json_schema_extra=BASIC,
    )
    repeats: int = Field(
        1, ge=1, le=100, description="Answers to each question; they count as one, its mean", json_schema_extra=BASIC
    )
    few_shot: FewShotOptions | None = Field(None, description="Solved questions before each question")
    judge: (
        Annotated[EvaluationJudge, BeforeValidator(as_model, json_schema_input_type=str | EvaluationJudge)] | None
    ) = Field(None, description="Model that marks answers, or compares each with another one in both orders")
    choices: ColumnName[str | None] = Field(
        None, description="Column with the choices: the answer is the one that the model finds most likely"
    )
    asserts: Judgement[ColumnName[str | None]] = Field(
        None, description="Column with gates that the row's answer has to pass: [{gate, value, weight}]"
    )
    slices: Judgement[ColumnName[list[str]]] = Field(
        [], max_length=8, description="Columns by whose values the metrics are shown, too"
    )
    cluster: Judgement[ColumnName[str | None]] = Field(
        None, description="Column whose equal values are questions of one kind, for intervals: such as a passage's id"
    )
    compare_with: Judgement[str | None] = Field(
        None, description="An ended job of this recipe, compared question by question"
    )

    def named_jobs(self) -> dict[str, str]:
        return {} if self.compare_with is None else {"compare_with": self.compare_with}

    def judging(self) -> set[str]:
        """Return the fields that only judge. A grader may be a model that is asked."""
        # Options of a job are read without a check, as JSON: a recipe may have changed since.
        names = [each.metric if isinstance(each, MetricOptions) else each["metric"] for each in self.metrics]
        return super().judging() - ({"metrics"} if any(map(graders.of_model, names)) else set())

    @property
    def labels(self) -> list[str]:
        """The names of all metrics. The first says which answers are right."""
        if self.choices is not None:
            return [ACC, ACC_NORM]
        labels = [metric.label for metric in self.metrics]
        return [*labels, *([ASSERTS] if self.asserts else []), *([JUDGE] if self.judge else [])]
