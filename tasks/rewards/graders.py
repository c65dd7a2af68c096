"""Rewards that OpenAI's grader JSON describes: `string_check`, `text_similarity` (`fuzzy_match`) and `multi`.

Templates name columns of the item, `{{item.answer}}`, and the answer: `{{sample.output_text}}`, or a part of an answer
that is JSON, `{{sample.output_json.name}}`. A grader's `extra_info` is the item's columns.
See https://platform.openai.com/docs/guides/graders.
"""

from __future__ import annotations

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

from batchyard.recipes import Reward, field_of

REFUSED = {
    "python": "runs code of clients, which Batchyard does not: an operator can add a reward as a Python file",
    "score_model": "is not supported: ask the model in a recipe of your own",
    "label_model": "is not supported: ask the model in a recipe of your own",
}
MAX_FORMULA = 500
"""Characters of `calculate_output`."""
_PLACE = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")


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


Grader: TypeAlias = Annotated[StringCheck | TextSimilarity | Multi, Field(discriminator="type")]
_ADAPTER: TypeAdapter[StringCheck | TextSimilarity | Multi] = TypeAdapter(Grader)


@functools.lru_cache(maxsize=128)
def reward(grader_json: str) -> Reward:
    """Make a reward of a grader's JSON.

    Raises:
        ValueError: it is no grader that can be used; the message begins with the path in the grader.
    """
    try:
        value = json.loads(grader_json)
    except ValueError as error:
        raise ValueError(f"the grader is no JSON: {error}") from None
    for path, kind in _kinds(value):
        if kind in REFUSED:
            raise ValueError(f"{path}: grader {kind!r} {REFUSED[kind]}")
    try:
        grader = _ADAPTER.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"] if part not in ("string_check", "text_similarity", "multi"))
        raise ValueError(f"{path or 'grader'}: {first['msg'].removeprefix('Value error, ')}") from None
    threshold = grader.pass_threshold if isinstance(grader, TextSimilarity) else None

    def grade(
        data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None
    ) -> dict[str, float]:
        try:
            score = grader.grade(extra_info or {}, solution_str)
        except _NoOutput:
            score = 0.0
        return {"score": score} | ({} if threshold is None else {"acc": float(score >= threshold)})

    return Reward(grader.name or grader.type, grade, columns=_columns(value))


def _kinds(value: Any, path: str = "grader") -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        return []
    graders = value.get("graders")
    inner = graders.items() if isinstance(graders, Mapping) else ()
    return [(path, value.get("type"))] + [kind for name, entry in inner for kind in _kinds(entry, f"graders.{name}")]


def _columns(value: Any) -> tuple[str, ...]:
    places = [place for text in _texts(value) for place in _PLACE.findall(text)]
    return tuple(dict.fromkeys(place.removeprefix("item.") for place in places if place.startswith("item.")))


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for entry in value.values() for text in _texts(entry)]
    return [value] if isinstance(value, str) else []


def _rendered(template: str, item: Mapping[str, Any], answer: str) -> str:
    return _PLACE.sub(lambda match: _value(match[1], item, answer), template)


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


@functools.lru_cache(maxsize=128)
def _formula(text: str, names: frozenset[str]) -> Callable[[Mapping[str, float]], float]:
    """Compile a formula of numbers, names, + - * / ^, and min max abs floor ceil exp sqrt log."""
    try:
        tree = ast.parse(text.strip().replace("^", "**"), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is no formula") from error

    def check(node: ast.expr) -> None:
        match node:
            case ast.Constant(value=value) if type(value) in (int, float):
                pass
            case ast.Name(id=name) if name in names:
                pass
            case ast.Name(id=name):
                raise ValueError(f"{name!r} is no grader; there are {', '.join(sorted(names))}")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                check(left)
                check(right)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                check(operand)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and args:
                for argument in args:
                    check(argument)
            case _:
                raise ValueError(f"{ast.unparse(node)!r} cannot be part of a formula")

    def value_of(node: ast.expr, scores: Mapping[str, float]) -> float:
        match node:
            case ast.Constant(value=value):
                return float(str(value))
            case ast.Name(id=name):
                return scores[name]
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](value_of(left, scores), value_of(right, scores))
            case ast.UnaryOp(op=op, operand=operand):
                return -value_of(operand, scores) if isinstance(op, ast.USub) else value_of(operand, scores)
            case ast.Call(func=ast.Name(id=name), args=args):
                return float(_FUNCTIONS[name](*(value_of(argument, scores) for argument in args)))
        raise AssertionError(node)

    check(tree)
    return lambda scores: value_of(tree, scores)
