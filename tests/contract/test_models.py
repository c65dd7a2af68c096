"""/v1/models, as contract.md promises it."""

from __future__ import annotations

import httpx

from tests.contract.conftest import refusal
from tests.support.stacks import RunningStack


def test_the_models_say_what_runs_them(stack: RunningStack) -> None:
    models = {model.id: model.to_dict() for model in stack.client.models.list()}
    assert models["nano"]["batchyard"]["engine"] == "transformers"  # type: ignore[index]
    assert models["echo"]["batchyard"]["simulated"] is True  # type: ignore[index]
    assert models["vectors"]["batchyard"]["endpoints"] == ["/v1/embeddings"]  # type: ignore[index]
    assert stack.client.models.retrieve("nano").id == "nano"


def test_a_model_that_is_not_served_is_404(http: httpx.Client) -> None:
    answer = http.get("/v1/models/meta/llama")
    assert (answer.status_code, refusal(answer)["code"]) == (404, "model_not_found")
