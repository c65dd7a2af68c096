"""Structured decisions (vLLM's `/v1/systemone`): questions about one state, each answered by probabilities."""

from typing import Any

from pydantic import Field

from batchyard.endpoints.bodies.common import Body, BodyObject


class Question(BodyObject):
    type: str = Field(min_length=1)
    instructions: Any = ""
    criteria: Any = None


class DecisionBody(Body):
    """The body of /v1/systemone."""

    state: Any
    questions: dict[str, Question] = Field(min_length=1)
    instructions: str = ""
    images: list[str] = Field(default_factory=list, fail_fast=True)
    audio: list[str] = Field(default_factory=list, fail_fast=True)
    videos: list[str] = Field(default_factory=list, fail_fast=True)
