"""A model that models.toml has got since the server started is named as such: a reload takes it up."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from tasks.context import AppContext
from tests.support.messages import SentMessages
from tests.support.stacks import RunningStack, a_chat
from tests.support.terminal import batchyard

LATER = '[models.later]\nengine = "echo"\nadapters = { tuned = "./tuned" }\n'
PANEL = {"recipe": "panel", "options": {"model": "later"}, "input": {"prompts": ["hello"]}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/start", {"model": "later", "prompts": ["hello"]}),
        ("/start", {"model": "tuned", "prompts": ["hello"]}),
        ("/v1/jobs", PANEL),
        ("/v1/models/later", None),
    ],
)
def test_a_model_that_is_in_the_file_only_is_told_from_an_unknown_one(
    context: AppContext, client: FlaskClient, sent: SentMessages, path: str, body: dict[str, Any] | None
) -> None:
    def message() -> str:
        answer = client.get(path) if body is None else client.post(path, json=body)
        assert answer.status_code in (400, 404)
        return str(answer.get_json()["error"]["message"])

    assert "restart" not in message()
    with context.settings.models.open("a") as file:
        file.write(LATER)
    assert "it is not in force: run `batchyard models reload`" in message()
    assert "Did you mean" not in message()


def test_the_terminal_and_a_batch_say_so(stack: RunningStack) -> None:
    models, folder = stack.data.parent / "models.toml", stack.data.parent
    before = models.read_text()
    (folder / "later.csv").write_text("text\nhello\n")
    try:
        models.write_text(f"{before}\n{LATER}")
        batch = stack.wait(stack.submit([a_chat("a", "hello", model="later")]))
        arguments = ("later.csv", "--model", "later", "--template", "{text}", "-o", "out.csv", "--data", stack.data)
        refused = batchyard("map", *arguments, folder=folder)
    finally:
        models.write_text(before)
    assert "models reload" in batch.errors.data[0].message
    assert refused.returncode == 2 and "models reload" in refused.stderr
