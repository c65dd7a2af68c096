"""Moderations (OpenAI's API reference)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from batchyard.endpoints.bodies.common import Body

Text = Annotated[str, Field(min_length=1)]


class ModerationBody(Body):
    """The body of /v1/moderations: a text, texts, or parts of one input."""

    input: Text | Annotated[list[Text | dict[str, Any]], Field(min_length=1, fail_fast=True)]
