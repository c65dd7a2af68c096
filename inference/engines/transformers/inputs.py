"""What requests say, as the token ids that the model reads."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from inference.engine import EngineAnswer

Read = TypeVar("Read")


class Refused(ValueError):
    """The engine refuses a request with `answer`."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.answer = EngineAnswer.refused(message, param=param, code=code)


def each_request(bodies: list[dict[str, Any]], read: Callable[[dict[str, Any]], Read]) -> list[Read | EngineAnswer]:
    """Return what `read` makes of each body, or the answer that refuses it."""
    requests: list[Read | EngineAnswer] = []
    for body in bodies:
        try:
            requests.append(read(body))
        except Refused as refusal:
            requests.append(refusal.answer)
    return requests


class InputPair(NamedTuple):
    """Two texts that the model reads as one. `segments`: of each token; None if the model knows no segments."""

    tokens: list[int]
    segments: list[int] | None


class Inputs:
    """Tokenizes with the model's tokenizer. `longest`: the model's context, in tokens."""

    def __init__(self, tokenizer: Any, vocabulary: int, longest: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self.longest = longest

    def chat(self, body: dict[str, Any]) -> list[int]:
        """Return the messages as the chat template renders them. Raises Refused."""
        from jinja2 import TemplateError

        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise Refused("messages must be a list of objects", param="messages", code="invalid_type")
        flat = [{**message, "content": _text(message.get("content"))} for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                flat, tokenize=False, add_generation_prompt=True, **(body.get("chat_template_kwargs") or {})
            )
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            raise Refused(f"the model's chat template refuses the messages: {error}", param="messages") from error
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def prompts(self, value: Any, param: str) -> list[list[int]]:
        """Return a prompt, or a list of them, as lists of token ids. Raises Refused."""
        if isinstance(value, str):
            return [list(self._tokenizer(value)["input_ids"])]
        if isinstance(value, list) and value:
            if all(isinstance(part, str) for part in value):
                return [list(self._tokenizer(part)["input_ids"]) for part in value]
            if all(isinstance(part, int) for part in value):
                value = [value]
            are_lists = all(isinstance(part, list) for part in value)
            if are_lists and all(type(id_) is int and 0 <= id_ < self._vocabulary for part in value for id_ in part):
                return [list(part) for part in value]
        raise Refused(f"{param} must be text, token ids or a list of either", param=param, code="invalid_type")

    def pair(self, query: str, document: str, param: str) -> InputPair:
        """Return a query and a document as one input. Raises Refused if it is too long."""
        encoded = self._tokenizer(query, document)
        tokens = list(encoded["input_ids"])
        self.room(tokens, param, 0)
        segments = encoded.get("token_type_ids")
        return InputPair(tokens, None if segments is None else list(segments))

    def room(self, prompt: list[int], param: str, limit: int | None) -> int:
        """Return the tokens that fit behind the prompt, to which a limit is cut. Raises Refused."""
        # What is only read may fill the context.
        room = self.longest - len(prompt)
        if not prompt:
            raise Refused(f"{param} must not be empty", param=param, code="invalid_value")
        if room < (limit != 0) or (limit or 0) > self.longest:
            generated = "" if limit == 0 else f" and {limit or 1} are to be generated"
            raise Refused(
                f"This model's maximum context length is {self.longest} tokens. However, {param} has "
                f"{len(prompt)} tokens{generated}.",
                param=param,
                code="context_length_exceeded",
            )
        return room


def _text(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return "\n".join(part.get("text") or part.get("refusal") or "" for part in content)
