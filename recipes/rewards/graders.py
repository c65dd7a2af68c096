"""Rewards that OpenAI's grader JSON describes: `string_check`, `text_similarity` (`fuzzy_match`) and `multi`.

`score_model` and `label_model` say what a model is asked; recipe rollout asks it.

Templates name columns of the item, `{{item.answer}}`, and the answer: `{{sample.output_text}}`, or a part of an answer
that is JSON, `{{sample.output_json.name}}`. A grader's `extra_info` is the item's columns.
See https://platform.openai.com/docs/guides/graders.
"""

import ast
import functools
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from rapidfuzz import fuzz

from batchyard.recipes import Answer, Ask, Messages, Reward, Scored, field_of
from batchyard.schema_words import invalid_values

REFUSED = {"python": "runs code of clients, which Batchyard does not: an operator can add a reward as a Python file"}
MAX_FORMULA = 500
"""Characters of `calculate_output`."""
_PLACE = re.compile(r"\{\{([^{}]*)\}\}")


class _NoOutput(Exception):
    """The answer is not the JSON that the grader reads."""


class _Grader(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str | None = None


class StringCheck(_Grader):
    """Compares two texts: equal, not equal, contains, contains in any case."""

    type: Literal["string_check"]
    input: str
    reference: str
    operation: Literal["eq", "ne", "like", "ilike"]

    def grade(self, item: Mapping[str, Any], answer: str) -> float:
        text, reference = _rendered(self.input, item, answer), _rendered(self.reference, item, answer)
        if self.operation == "ilike":
            text, reference = text.lower(), reference.lower()
        if self.operation in ("like", "ilike"):
            return float(reference in text)
        return float((text == reference) == (self.operation == "eq"))


class TextSimilarity(_Grader):
    """The similarity of two texts from 0 to 1: rapidfuzz's `fuzz.ratio`, divided by 100."""

    type: Literal["text_similarity"]
    input: str
    reference: str
    evaluation_metric: Literal["fuzzy_match"]
    pass_threshold: float | None = None

    def grade(self, item: Mapping[str, Any], answer: str) -> float:
        text, reference = _rendered(self.input, item, answer), _rendered(self.reference, item, answer)
        return fuzz.ratio(text, reference) / 100


Single: TypeAlias = Annotated[StringCheck | TextSimilarity, Field(discriminator="type")]


class Multi(_Grader):
    """A formula over the scores of graders, by their names."""

    type: Literal["multi"]
    graders: dict[str, Single] = Field(min_length=1)
    calculate_output: str = Field(max_length=MAX_FORMULA)

    @field_validator("calculate_output")
    @classmethod
    def _is_a_formula(cls, value: str, info: Any) -> str:
        names = info.data.get("graders")
        if names is not None:
            _formula(value, frozenset(names))
        return value

    def grade(self, item: Mapping[str, Any], answer: str) -> float:
        scores = {name: grader.grade(item, answer) for name, grader in self.graders.items()}
        return _formula(self.calculate_output, frozenset(scores))(scores)


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "developer", "user", "assistant"]
    content: str


class SamplingParams(BaseModel):
    """How a grader's model is sampled."""

    model_config = ConfigDict(extra="forbid")
    temperature: float = Field(0.0, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = None
    max_completion_tokens: int | None = Field(None, ge=1)


class _ModelGrader(_Grader):
    model: str
    input: list[_Message] = Field(min_length=1)
    sampling_params: SamplingParams = SamplingParams()

    def messages(self, item: Mapping[str, Any], answer: str) -> Messages | None:
        """Return what the model is asked about an answer, None if a template cannot read it."""
        try:
            return [
                {"role": message.role, "content": _rendered(message.content, item, answer)} for message in self.input
            ]
        except _NoOutput:
            return None

    def scored(self, grade: Answer) -> Scored:
        """Return the score that a model's answer gives. Without a usable one it is 0, with an error."""
        if not grade.ok:
            error = grade.error or {}
            return Scored(0.0, error=f"the grader's model gave no grade: {error.get('message') or error.get('code')}")
        try:
            return self._scored(grade.text)
        except (ValueError, KeyError, TypeError):
            return Scored(0.0, error="the grader's model gave no grade that can be read")

    def ask(self, stage: str, messages: Messages | None = None) -> Ask:
        """Return the request of a grade; without messages an example, of the templates as they are."""
        content = messages or [message.model_dump() for message in self.input]
        return Ask(
            stage, content, model=self.model, **self._form(), **self.sampling_params.model_dump(exclude_none=True)
        )

    def _form(self) -> dict[str, Any]:
        """Return the form that the model is held to, as arguments of an Ask."""
        raise NotImplementedError

    def _scored(self, text: str) -> Scored:
        raise NotImplementedError


class ScoreModel(_ModelGrader):
    """A model gives a number within a range, as `result` of a JSON object."""

    type: Literal["score_model"]
    range: tuple[float, float] = (0.0, 1.0)
    pass_threshold: float | None = None

    @field_validator("range")
    @classmethod
    def _rises(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not value[0] < value[1]:
            raise ValueError(f"the lowest score comes first, and is less than the highest, not {list(value)}")
        return value

    def _form(self) -> dict[str, Any]:
        result = {"type": "number", "minimum": self.range[0], "maximum": self.range[1]}
        schema = {"type": "object", "properties": {"result": result}, "required": ["result"]}
        return {"json": schema | {"additionalProperties": False}}

    def _scored(self, text: str) -> Scored:
        score = float(json.loads(text)["result"])
        if not self.range[0] <= score <= self.range[1]:
            raise ValueError(score)
        return Scored(score, acc=None if self.pass_threshold is None else float(score >= self.pass_threshold))


class LabelModel(_ModelGrader):
    """A model chooses a label. Those that pass score 1."""

    type: Literal["label_model"]
    labels: list[str] = Field(min_length=2)
    passing_labels: list[str] = Field(min_length=1)

    @field_validator("passing_labels")
    @classmethod
    def _are_labels(cls, value: list[str], info: Any) -> list[str]:
        unknown = [label for label in value if label not in info.data.get("labels", value)]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is none of the labels")
        return value

    def _form(self) -> dict[str, Any]:
        return {"choice": self.labels}

    def _scored(self, text: str) -> Scored:
        passed = float(self.labels[self.labels.index(text)] in self.passing_labels)
        return Scored(passed, acc=passed, pred=text)


ModelGrader: TypeAlias = ScoreModel | LabelModel
_AnyGrader: TypeAlias = StringCheck | TextSimilarity | Multi | ScoreModel | LabelModel
Grader: TypeAlias = Annotated[_AnyGrader, Field(discriminator="type")]
_ADAPTER: TypeAdapter[_AnyGrader] = TypeAdapter(Grader)


def of_model(grader_json: str | None) -> ModelGrader | None:
    """Return the grader of a JSON that asks a model, else None. Raises ValueError."""
    if grader_json is None or not grader_json.startswith("{"):
        return None
    grader = _parsed(grader_json)
    return grader if isinstance(grader, ScoreModel | LabelModel) else None


@functools.lru_cache(maxsize=128)
def reward(grader_json: str) -> Reward:
    """Make a reward of a grader's JSON. One that asks a model cannot be called. Raises ValueError."""
    grader = _parsed(grader_json)
    threshold = grader.pass_threshold if isinstance(grader, TextSimilarity) else None

    def grade(
        data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None
    ) -> dict[str, float]:
        if isinstance(grader, ScoreModel | LabelModel):
            raise TypeError(f"grader {grader.type} asks a model, which recipe rollout does")
        try:
            score = grader.grade(extra_info or {}, solution_str)
        except _NoOutput:
            score = 0.0
        return {"score": score} | ({} if threshold is None else {"acc": float(score >= threshold)})

    places = [place.strip() for text in _texts(json.loads(grader_json)) for place in _PLACE.findall(text)]
    columns = dict.fromkeys(place.removeprefix("item.") for place in places if place.startswith("item."))
    return Reward(grader.name or grader.type, grade, columns=tuple(columns))


@functools.lru_cache(maxsize=128)
def _parsed(grader_json: str) -> _AnyGrader:
    try:
        value = json.loads(grader_json)
    except ValueError as error:
        raise ValueError(f"the grader is no JSON: {error}") from None
    for path, kind in _kinds(value):
        if kind in REFUSED:
            raise ValueError(f"{path}: grader {kind!r} {REFUSED[kind]}")
    try:
        return _ADAPTER.validate_python(value)
    except ValidationError as error:
        first = invalid_values(error, value)[0]
        raise ValueError(f"{first.place or 'grader'}: {first.reason}") from None


def _kinds(value: Any, path: str = "grader") -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        return []
    graders = value.get("graders")
    inner = graders.items() if isinstance(graders, Mapping) else ()
    return [(path, value.get("type"))] + [kind for name, entry in inner for kind in _kinds(entry, f"graders.{name}")]


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping | list):
        inner = value.values() if isinstance(value, Mapping) else value
        return [text for entry in inner for text in _texts(entry)]
    return [value] if isinstance(value, str) else []


def _rendered(template: str, item: Mapping[str, Any], answer: str) -> str:
    return _PLACE.sub(lambda match: _value(match[1].strip(), item, answer), template)


def _value(place: str, item: Mapping[str, Any], answer: str) -> str:
    namespace, _, path = place.partition(".")
    if place == "sample.output_text":
        return answer
    if namespace == "item" and path:
        return _text(field_of(item, path))
    if place == "sample.output_json" or place.startswith("sample.output_json."):
        try:
            output = json.loads(answer)
            return _text(field_of(output, path.partition(".")[2]) if "." in path else output)
        except (ValueError, KeyError, RecursionError):
            raise _NoOutput from None
    raise ValueError(f"{{{{{place}}}}} is neither item.…, sample.output_text nor sample.output_json.…")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}


_Formula: TypeAlias = Callable[[Mapping[str, float]], float]


@functools.lru_cache(maxsize=128)
def _formula(text: str, names: frozenset[str]) -> _Formula:
    """Compile a formula of numbers, names, + - * / ^, and min max abs floor ceil exp sqrt log."""
    try:
        tree = ast.parse(text.strip().replace("^", "**"), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is no formula") from error

    def compiled(node: ast.expr) -> _Formula:
        match node:
            case ast.Constant(value=value) if type(value) in (int, float):
                number = float(str(value))
                return lambda _: number
            case ast.Name(id=name) if name in names:
                return lambda scores: scores[name]
            case ast.Name(id=name):
                raise ValueError(f"{name!r} is no grader; available: {', '.join(sorted(names))}")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                combine, one, other = _OPERATORS[type(op)], compiled(left), compiled(right)
                return lambda scores: combine(one(scores), other(scores))
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
                inner = compiled(operand)
                return (lambda scores: -inner(scores)) if isinstance(op, ast.USub) else inner
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and args:
                function, inputs = _FUNCTIONS[name], [compiled(argument) for argument in args]
                return lambda scores: float(function(*(each(scores) for each in inputs)))
            case _:
                raise ValueError(f"{ast.unparse(node)!r} cannot be part of a formula")

    return compiled(tree)
