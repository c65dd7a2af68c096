"""The engines by name. Importing this is light: torch, transformers and vLLM are imported when an engine starts."""

from __future__ import annotations

from importlib import import_module

from pydantic import ValidationError

from batchyard.errors import ConfigurationError
from batchyard.models import ModelSpec
from batchyard.wording import nearest
from inference.engine import Capabilities, Engine

ENGINES = {
    "vllm": "inference.engines.vllm.engine:VLLM",
    "vllm-job": "inference.engines.vllm.job:VLLMJob",
    "openai": "inference.engines.openai.engine:OpenAI",
    "transformers": "inference.engines.transformers.engine:Transformers",
    "echo": "inference.engines.echo:Echo",
}


def capabilities(name: str) -> type[Capabilities]:
    """What the engine with this name can be asked.

    Raises:
        ConfigurationError: no engine has that name; names the nearest.
    """
    if name not in ENGINES:
        raise ConfigurationError(f"no engine is named {name!r}; did you mean {nearest(name, ENGINES)}?")
    module, attribute = ENGINES[name].split(":")
    found: type[Capabilities] = getattr(import_module(module), attribute)
    return found


def engine_class(name: str) -> type[Engine]:
    """The class of the engine with this name.

    Raises:
        ConfigurationError: no engine has that name, or it is not one that is started and asked.
    """
    found = capabilities(name)
    if not issubclass(found, Engine):
        raise ConfigurationError(f"engine {name} cannot be started by itself: it runs within a job")
    return found


def check_arguments(spec: ModelSpec) -> None:
    """Refuse engine_args that the engine does not know, without starting it. vLLM checks its own at start.

    Raises:
        ConfigurationError: names the model, the key and the nearest right one, or the value and what is wrong with it.
    """
    schema = capabilities(spec.engine).arguments
    if schema is None:
        return
    for key in spec.engine_args:
        if key not in schema.model_fields and schema.model_config.get("extra") != "allow":
            raise ConfigurationError(
                f"models.{spec.name}.engine_args.{key}: engine {spec.engine} has no such argument; "
                f"did you mean {nearest(key, schema.model_fields)}?"
            )
    try:
        schema.model_validate(spec.engine_args)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"models.{spec.name}.engine_args.{key}: {first['msg']}") from error
