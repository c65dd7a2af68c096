"""Messages of recipe `panel`: the prompts of its options, filled for one item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchyard import json_lines
from batchyard.recipes import Item, Messages
from batchyard.wording import fill
from recipes.panel.events import Agent
from recipes.panel.options import PanelOptions


class PanelMessages:
    """The messages of one item."""

    def __init__(self, item: Item, options: PanelOptions) -> None:
        messages = item.messages
        leading = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages) - 1)
        system = [message.get("content") for message in messages[:leading]]
        self._system = [text for text in (item.system, *system) if text]
        self._before = messages[leading:-1]
        content = messages[-1].get("content") or ""
        parts = content if isinstance(content, list) else []
        self._media = [part for part in parts if part.get("type") != "text"]
        text = "\n".join(part["text"] for part in parts if part.get("type") == "text") if parts else content
        self._prompts = options.prompts
        self._places = {
            "task": text,
            "rubric": _section("Rubric", _constraint(item, options, "rubric")),
            "requirements": _section("Requirements", _constraint(item, options, "requirements")),
            "metadata": _section("Further information", _constraint(item, options, "metadata")),
            "hint": item.hint or "",
        }

    def chat(self, agent: Agent | None, prompt: str, **places: object) -> Messages:
        """Return the messages to an agent, or to the judge, with the prompt of this name."""
        paragraphs = [*self._system]
        if agent is not None:
            diversity = self._filled("diversity") if agent.diverse else ""
            paragraphs.append(self._filled("system", role=agent.prompt, diversity=diversity))
        text = self._filled(prompt, **places)
        content = [*self._media, {"type": "text", "text": text}] if self._media else text
        system = [{"role": "system", "content": "\n\n".join(paragraphs)}] if paragraphs else []
        return [*system, *self._before, {"role": "user", "content": content}]

    def _filled(self, prompt: str, **places: object) -> str:
        template: str = getattr(self._prompts, prompt)
        paragraphs = (fill(paragraph, self._places | places) for paragraph in template.split("\n\n"))
        return "\n\n".join(paragraph for paragraph in paragraphs if paragraph.strip())


def _constraint(item: Item, options: PanelOptions, name: str) -> Any:
    """Return an item's rubric, requirements or metadata: its column, else `constraints`, else the option."""
    constraints = item.columns.get("constraints")
    constraint = constraints.get(name) if isinstance(constraints, Mapping) else None
    return next((value for value in (item.columns.get(name), constraint) if value is not None), getattr(options, name))


def _section(title: str, value: Any) -> str:
    """Return a value under its title, a line for each element; nothing for nothing."""
    if not value:
        return ""
    if isinstance(value, Mapping):
        value = [f"{name}: {_shown(element)}" for name, element in value.items()]
    lines = [f"- {_shown(element)}" for element in value] if isinstance(value, list) else [_shown(value)]
    return "\n".join([f"{title}:", *lines])


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json_lines.dumps(value).decode()
