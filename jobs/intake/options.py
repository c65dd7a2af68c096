"""Options of a recipe, from a client: parsed, and every name in them looked up."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from batchyard.endpoints.catalog import ENDPOINTS
from batchyard.errors import RequestError, value_code
from batchyard.models import ModelSpec, newer, served_by_name
from batchyard.recipes import CHAT, Answer, Ask, Check, FlowRecipe, Item, Options, Recipe, Stage
from batchyard.recipes.program import Request
from batchyard.schema_words import InvalidValue, invalid_values
from batchyard.settings import Settings
from batchyard.wording import MAX_LIST, MAX_MESSAGE, MAX_NAME, cut, nearest, quoted
from jobs.intake import author_calls
from jobs.intake.drafts import JobDraft
from jobs.intake.requests import Preparer
from recipes.registry import Catalogue
from tasks.context import AppContext

log = logging.getLogger(__name__)

ROOT = "options"
REMEDY = "It only reads options; its author has to take out of it what waits or does not end."
MAX_ERRORS = 5
"""Errors that one refusal names."""
_PLACED = re.compile(r"(?:([A-Za-z_][\w./-]*): )?(.*)", re.DOTALL)
"""The message of a ValueError, which may begin with the path of an option."""
KINDS = {
    "model": "model",
    "models": "model",
    "reward": "reward",
    "rewards": "reward",
    "gate": "gate",
    "gates": "gate",
    "tools": "tool",
}
"""Names of options, at any depth, that hold the name of a model, a reward, a gate or a tool, or several of them."""


def parse(context: AppContext, recipe: Recipe[Any], values: Mapping[str, Any]) -> Options:
    """Return the options of a recipe. Raises RequestError that names each error."""
    author_calls.call(context, recipe, "check", REMEDY, _checked, values)
    options: Options = recipe.options.model_validate(values)
    return options


def _checked(_: Settings, recipe: Recipe[Any], values: Mapping[str, Any]) -> None:
    try:
        options = recipe.options.model_validate(values)
    except ValidationError as error:
        raise _refusal(invalid_values(error, values, recipe.options.model_json_schema())) from None
    if recipe.check is not None:
        called(recipe, "check", recipe.check, options)


def _refusal(invalid: list[InvalidValue]) -> RequestError:
    messages = [_message(value) for value in invalid[:MAX_ERRORS]]
    if len(invalid) > MAX_ERRORS:
        messages.append(f"There are {len(invalid)} errors in all.")
    first = invalid[0]
    codes = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}
    code = codes.get(first.kind) or value_code(first.kind, first.value)
    return RequestError(" ".join(messages), code=code, param=_path(first.path))


def _message(invalid: InvalidValue) -> str:
    param = _path(invalid.path)
    if invalid.kind == "missing":
        return f"Missing required parameter: '{param}'."
    if invalid.kind == "extra_forbidden":
        hint = f" Did you mean '{_path((*invalid.path[:-1], invalid.near))}'?" if invalid.near else ""
        return f"Unknown parameter: '{param}'.{hint}"
    return f"Invalid value for '{param}': {cut(invalid.reason, MAX_LIST)}."


def _path(parts: Iterable[Any]) -> str:
    return cut(".".join([ROOT, *map(str, parts)]), MAX_NAME)


def called(recipe: Recipe[Any], name: str, function: Callable[..., Any], options: Any) -> Any:
    """Call a function of the author. Raises RequestError for its errors."""
    try:
        return function(options)
    except ValueError as error:
        path, reason = _PLACED.fullmatch(str(error)).groups()  # type: ignore[union-attr]  # it matches any text
        param = ROOT if path is None else f"{ROOT}.{path.removeprefix(f'{ROOT}.')}"
        message = f"Invalid value for '{param}': {cut(reason.strip().removesuffix('.'), MAX_MESSAGE)}."
        raise RequestError(message, code="invalid_value", param=param) from None
    except Exception as error:
        log.exception("a recipe's function failed", extra={"recipe": recipe.name, "function": name})
        message = f"The {name} of recipe {recipe.name!r} failed: {cut(repr(error), MAX_LIST)}; its author has to look."
        raise RequestError(message, code="recipe_error", param=ROOT) from error


def ask(context: AppContext, recipe: Recipe[Any], name: str, options: Options) -> Any:
    """Return what the author's function of that name says, None without one. Raises RequestError."""
    if getattr(recipe, name) is None:
        return None
    return author_calls.call(context, recipe, name, REMEDY, _asked, name, options.model_dump(mode="json"))


def _asked(_: Settings, recipe: Any, name: str, values: Mapping[str, Any]) -> Any:
    function = recipe.stages_of if name == "stages" else getattr(recipe, name)
    result = called(recipe, name, function, recipe.options.model_validate(values))
    return None if result is None else list(result)


def stages(context: AppContext, recipe: FlowRecipe[Any], options: Options) -> list[Stage]:
    stages: list[Stage] = ask(context, recipe, "stages", options)
    unknown = [stage.endpoint for stage in stages if stage.endpoint not in ENDPOINTS]
    if not stages or unknown or len({stage.name for stage in stages}) < len(stages):
        reason = f"the endpoint {unknown[0]!r}" if unknown else "no stage, or one twice"
        message = f"Recipe {recipe.name!r} has {reason}; its author has to look. Endpoints: {', '.join(ENDPOINTS)}."
        raise RequestError(message, code="recipe_error", param=ROOT)
    return stages


def expected(
    context: AppContext, recipe: FlowRecipe[Any], options: Options, stages: Sequence[Stage]
) -> list[float | None]:
    """Return an item's requests in each stage, None if unknown. Raises RequestError."""
    counts: list[float | None] = list(ask(context, recipe, "expected", options) or ())
    return (counts + [None] * len(stages))[: len(stages)]


def shares(context: AppContext, recipe: FlowRecipe[Any], options: Options, draft: JobDraft) -> list[dict[str, float]]:
    """Return the share of each model in the requests of each stage of a job.

    Requests of an adapter count as its base's. A stage without an example asks the models of the stage before it. Empty
    if several may be, and nothing says which.
    """
    examples = ask(context, recipe, "probe", options) or ()
    names = list(draft.job.models)
    bases = {adapter: name for name, spec in draft.job.models.items() for adapter in spec.get("adapters", ())}
    share: dict[str, float] = {names[0]: 1.0} if len(names) == 1 else {}
    by_stage = []
    for stage in draft.stages:
        asked = [want.model for want in examples if isinstance(want, Ask) and want.stage == stage.name]
        counts = Counter(bases.get(name, name) for name in asked)
        share = {model: number / counts.total() for model, number in counts.items()} or share
        by_stage.append(share)
    return by_stage


def models(
    context: AppContext, catalogue: Catalogue, recipe: FlowRecipe[Any], options: Options, stages: Iterable[Stage]
) -> dict[str, ModelSpec]:
    """Return the models that options or examples name; all without any. Raises RequestError, which names the option."""
    values = options.model_dump(mode="json")
    for path, kind, name in _names(options, ROOT):
        if kind == "reward":
            catalogue.reward(name, path)
        elif kind == "gate":
            catalogue.gate(name, path)
        elif kind == "tool":
            catalogue.tool(name, path)
        else:
            check_model(context, name, path)
    asks: list[Ask] = []
    endpoints = {stage.name: stage.endpoint for stage in stages}
    for want in ask(context, recipe, "probe", options) or ():
        if isinstance(want, Ask):
            _check_ask(context, recipe, values, want, endpoints)
            asks.append(want)
        elif isinstance(want, Check):
            _check_gate(catalogue, values, want)
        else:
            catalogue.reward(want.reward, _place_of(values, want.reward))
    names = served_by_name(context.models)
    texts = {value for _, value in _values(values) if isinstance(value, str)} | {want.model for want in asks}
    named = {names[text].name for text in texts if text in names}
    return {name: spec for name, spec in context.models.items() if name in named or not named}


def _names(value: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, kind and name of what fields of options name."""
    if isinstance(value, BaseModel):
        for key in type(value).model_fields:  # not the keys of objects, such as a JSON schema
            inner, inner_path, kind = getattr(value, key), f"{path}.{key}", KINDS.get(key)
            if kind is not None:
                yield from ((place, kind, name) for place, name in _named(inner, inner_path))
            yield from _names(inner, inner_path)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _names(inner, f"{path}.{index}")


def _named(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        yield from ((f"{path}.{index}", name) for index, name in enumerate(value) if isinstance(name, str))
    elif isinstance(value, dict) and "type" not in value:  # a grader has a type, and is no table of names
        yield from ((f"{path}.{key}", name) for key, name in value.items() if isinstance(name, str))


def _values(value: Any, path: str = ROOT) -> Iterator[tuple[str, Any]]:
    yield path, value
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from _values(inner, f"{path}.{key}")


def check_model(context: AppContext, name: str, param: str) -> None:
    """Raise RequestError about `param` for a model that is not served."""
    names = served_by_name(context.models)
    if name not in names:
        near, remedy = nearest(name, names), newer(context.settings.models, name)
        hint = f" But {remedy}." if remedy else f" Did you mean '{near}'?" if near else ""
        message = (
            f"The model {quoted(name)} is not served here.{hint} Served: {cut(', '.join(sorted(names)), MAX_LIST)}."
        )
        raise RequestError(message, code="model_not_found", param=param)


def _check_gate(catalogue: Catalogue, options: Mapping[str, Any], check: Check) -> None:
    param = _place_of(options, check.gate)
    gate = catalogue.gate(check.gate, param)
    try:
        if gate.check is not None:
            gate.check(check.value)
    except ValueError as error:
        message = f"Gate {quoted(gate.name)} {cut(str(error), MAX_LIST)}."
        raise RequestError(message, code="invalid_value", param=param) from None


def _check_ask(
    context: AppContext, recipe: Recipe[Any], options: Mapping[str, Any], ask: Ask, endpoints: Mapping[str, str]
) -> None:
    endpoint = endpoints.get(ask.stage)
    if endpoint is None:
        message = f"The probe of recipe {recipe.name!r} asks in stage {ask.stage!r}; its author has to look."
        raise RequestError(message, code="recipe_error", param=ROOT)
    check_model(context, ask.model, _place_of(options, ask.model))
    content: Any = ask.content
    if endpoint == CHAT and isinstance(content, str):
        content = [{"role": "user", "content": content}]
    body = {"model": ask.model, ENDPOINTS[endpoint].content[0]: content, **ask.sampling}
    request = Request(ask.stage, endpoint, 1, 0, ask.model, body, ask.structure, None)
    refused = Preparer(context.models).prepare(Item(0, "probe", {}), 0, request)
    if isinstance(refused, Answer):
        error = refused.error or {}
        name = str(error.get("param") or "").removeprefix("body.").partition(".")[0]
        message = f"A request of stage {ask.stage!r} cannot run: {error.get('message')}"
        holders = (path for path, value in _values(options) if isinstance(value, dict) and value.get(name) is not None)
        param = next((f"{path}.{name}" for path in holders), ROOT)
        raise RequestError(message, code=error.get("code"), param=param)


def _place_of(options: Any, text: str) -> str:
    """Return the path of a text in the options, else of all."""
    return next((path for path, value in _values(options) if value == text), ROOT)
