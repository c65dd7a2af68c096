"""What a client may set of a chat template: its variables, and nothing of how it is rendered."""

from __future__ import annotations

import inspect

import pytest

from batchyard.models import ModelSpec
from inference.engine import RENDERING
from inference.engines import registry

CHAT = "/v1/chat/completions"
CHATS = (CHAT, "/v1/responses", "/v1/messages")
SAID = {"messages": [{"role": "user", "content": "hello"}], "input": "hello"}
OURS = [("transformers", path) for path in CHATS]
VLLM = [("vllm", path) for path in (*CHATS, "/v1/embeddings", "/v1/score", "/pooling", "/classify", "/tokenize")]


@pytest.mark.parametrize("name", sorted(RENDERING))
@pytest.mark.parametrize(("engine", "path"), [*OURS, *VLLM])
def test_a_parameter_of_rendering_is_refused_by_name(engine: str, path: str, name: str) -> None:
    spec = ModelSpec(name="m", engine=engine, source="a/b")
    body = {"model": "m", "chat_template_kwargs": {"enable_thinking": True, name: "{{ 1 }}"}}
    refused = registry.capabilities(engine).unsupported(spec, path, body)
    assert refused == (f"body.chat_template_kwargs.{name}", f"chat_template_kwargs must not set '{name}'")


@pytest.mark.parametrize(("engine", "path"), [*OURS, *VLLM])
def test_variables_of_a_template_may_be_set_and_the_template_may_not(engine: str, path: str) -> None:
    spec = ModelSpec(name="m", engine=engine, source="a/b")
    unsupported = registry.capabilities(engine).unsupported
    variables = {"model": "m", "chat_template_kwargs": {"enable_thinking": False}}
    assert unsupported(spec, path, variables) is None
    template = unsupported(spec, path, {**variables, "chat_template": "{{ 1 }}"})
    assert template is not None and template[0] == "body.chat_template"


@pytest.mark.parametrize("renders", ["PreTrainedTokenizerBase", "ProcessorMixin"])
def test_all_parameters_of_rendering_are_known(renders: str) -> None:
    import transformers  # imports torch: not in every test process

    renderer = getattr(transformers, renders)
    assert inspect.signature(renderer.apply_chat_template).parameters.keys() - {"kwargs"} <= RENDERING
