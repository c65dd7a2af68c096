"""An item is a row: its messages, its fields, and seeds that depend on nothing but the job and the row."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.recipes import Item
from batchyard.recipes.item import InvalidItem, field_of, messages_of

USER = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("columns", "template", "messages"),
    [
        ({"prompt": "Hello"}, None, USER),
        ({"prompt": USER}, None, USER),
        ({"messages": USER, "prompt": "other"}, "{prompt}", USER),
        ({"messages": None, "prompt": None, "name": "Hello"}, "{name}", USER),
        ({"prompt": "Hello", "name": "x"}, "{name}", USER),
    ],
)
def test_the_messages_of_a_row_are_its_messages_its_prompt_or_the_filled_template(
    columns: dict[str, Any], template: str | None, messages: list[dict[str, Any]]
) -> None:
    assert messages_of(columns, template) == messages


@pytest.mark.parametrize(
    ("columns", "template", "code"),
    [
        ({"text": "a"}, None, "missing_prompt"),
        ({}, None, "missing_prompt"),
        ({"text": "a"}, "{name}", "missing_prompt"),
        ({"text": None}, "{text}", "empty_value"),
        ({"text": "a"}, "{text", "invalid_template"),
        ({"prompt": ""}, None, "empty_value"),
        ({"prompt": None}, None, "empty_value"),
        ({"prompt": "", "text": ""}, "{text}", "empty_value"),
        ({"prompt": "cut \ud83d"}, None, "invalid_value"),
        ({"prompt": []}, None, "invalid_messages"),
        ({"prompt": 5}, None, "invalid_messages"),
        ({"messages": ["Hello"]}, None, "invalid_messages"),
        ({"messages": [{"content": "no role"}]}, None, "invalid_messages"),
    ],
)
def test_a_row_that_cannot_be_asked_says_why(columns: dict[str, Any], template: str | None, code: str) -> None:
    with pytest.raises(InvalidItem) as invalid:
        messages_of(columns, template)
    assert invalid.value.code == code


def test_a_field_is_found_by_its_dotted_path() -> None:
    row = {"reward_model": {"ground_truth": ["a", {"b": 2}]}, "a.b": 1}
    assert field_of(row, "reward_model.ground_truth.1.b") == 2
    for path in ("reward_model.ground_truth.2", "reward_model.other", "reward_model.ground_truth.-1", "a.b"):
        with pytest.raises(KeyError):
            field_of(row, path)


def test_a_chat_has_the_system_message_the_row_the_hint_and_the_turns() -> None:
    item = Item(1, "item-1", {"prompt": "Hello"}, hint="look again", system="Be brief.")
    roles = [(message["role"], message["content"]) for message in item.chat("more")]
    assert roles == [("system", "Be brief."), ("user", "Hello"), ("user", "look again"), ("user", "more")]
    assert item.messages == USER, "the row's own stay as they are"


def test_seeds_depend_on_the_job_the_id_the_parts_and_the_life_alone() -> None:
    item = Item(1, "a", {}, job_seed=7)
    same = Item(5, "a", {"prompt": "other"}, total=9, hint="x", job_seed=7)
    assert item.seed("ask", 1) == same.seed("ask", 1) < 1 << 53
    others = [Item(1, "b", {}, job_seed=7), Item(1, "a", {}, job_seed=8), Item(1, "a", {}, job_seed=7, life=2)]
    seeds = {item.seed("ask", 1), item.seed("ask", 2), item.seed("ask", "1"), *(one.seed("ask", 1) for one in others)}
    assert len(seeds) == 6
    assert item.random("x").random() == same.random("x").random()
    assert Item(1, "\ud83d", {}).seed("half an emoji") >= 0
