"""The engines by name: the built-in ones, and those that installed packages add (entry points `batchyard.engines`)."""

import inspect
from typing import Any

from pydantic import ValidationError

from batchyard.errors import ConfigurationError
from batchyard.models import ModelSpec
from batchyard.plugins import Registry
from batchyard.schema_words import invalid_values
from batchyard.wording import count, nearest
from inference.engine import Capabilities, Engine, JobEngine

BUILT_IN = {
    "vllm": "inference.engines.vllm.engine:VLLM",
    "vllm-job": "inference.engines.vllm.job:VLLMJob",
    "openai": "inference.engines.openai.engine:OpenAI",
    "server": "inference.engines.openai.server:Server",
    "transformers": "inference.engines.transformers.engine:Transformers",
    "echo": "inference.engines.echo:Echo",
}


def _checked(value: Any) -> tuple[str, type[Capabilities]]:
    if not (isinstance(value, type) and issubclass(value, (Engine, JobEngine))):
        raise TypeError("is no subclass of inference.engine.Engine or JobEngine")
    if inspect.isabstract(value):
        raise TypeError(f"lacks the methods {', '.join(sorted(value.__abstractmethods__))}")
    if not isinstance(getattr(value, "name", None), str):
        raise TypeError("has no attribute `name`")
    if value.simulated and issubclass(value, JobEngine):
        raise TypeError("is simulated and a JobEngine, whose answers nobody could mark; derive it from Engine")
    return value.name, value


ENGINES: Registry[type[Capabilities]] = Registry("engine", "batchyard.engines", BUILT_IN, _checked)


def capabilities(name: str) -> type[Capabilities]:
    """Return the class of an engine. Raises ConfigurationError, with the nearest name, or for a broken entry point."""
    return ENGINES.get(name)


def engine_class(name: str) -> type[Engine]:
    """Return the class of an engine that can be started by itself. Raises ConfigurationError for any other."""
    engine = capabilities(name)
    if not issubclass(engine, Engine):
        raise ConfigurationError(f"engine {name} cannot be started by itself: it runs within a job")
    return engine


def unfit(spec: ModelSpec, *, alone: bool, replica: int | None) -> str | None:
    """Return why requests cannot have an engine to themselves, or this replica's; None if they can."""
    if (alone or replica is not None) and issubclass(capabilities(spec.engine), JobEngine):
        return f"engine {spec.engine} of model {spec.name} shares out all requests itself; leave out alone and replica"
    if replica is not None and replica >= spec.replicas:
        return f"model {spec.name} has {count(spec.replicas, 'replica')}, counted from 0, and none is number {replica}"
    return None


def check_arguments(spec: ModelSpec) -> None:
    """Refuse unknown engine_args without a start, which checks their values. Raises ConfigurationError with the key."""
    engine = capabilities(spec.engine)
    schema, names = engine.arguments, engine.argument_names()
    if engine.needs_source and "model" in spec.engine_args:  # vLLM would load it in place of what the manifest names
        message = f"engine {spec.engine} loads the model that `source` names; set that"
        raise ConfigurationError(f"models.{spec.name}.engine_args.model: {message}")
    for key in spec.engine_args:
        if names is not None and key not in names:
            near = nearest(key, names)
            raise ConfigurationError(
                f"models.{spec.name}.engine_args.{key}: engine {spec.engine} has no such argument; "
                f"{f'did you mean {near}?' if near else 'leave it out'}"
            )
    if schema is None:
        return
    try:
        schema.model_validate(spec.engine_args)
    except ValidationError as error:
        first = invalid_values(error, spec.engine_args, schema.model_json_schema(), show=False)[0]
        raise ConfigurationError(f"models.{spec.name}.engine_args.{first}") from error
