"""`traces.jsonl`: a trajectory in a line, as `verifiers` reads and writes traces (schema version 1).

Source: the classes Trace and MessageNode of the package `verifiers`. A trace is a graph of messages. Each node has the
tokens that its message adds, and a mask of those that the model has sampled. Here the nodes of answers have the tokens
of the prompt before them, too, as engines do not say which message a token belongs to; so a path through the graph
still has all tokens in their order.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.recipes import EndedItem, Messages, Tool
from recipes.agent.options import AgentLoop

FINISH_REASONS = ("stop", "length", "tool_calls")


def trace_of(item: EndedItem, prompt: Messages, tools: Sequence[Tool], options: AgentLoop) -> dict[str, Any]:
    """Return the trace of an item after the messages of `prompt`."""
    turns: Sequence[Mapping[str, Any]] = item.result.get("turns") or []
    nodes = _Nodes()
    for message in prompt:
        values = dict(message)
        if values.get("role") == "developer":
            values["role"] = "system"
        if isinstance(values.get("tool_calls"), list):
            functions = [(call.get("id"), call.get("function") or {}) for call in values["tool_calls"]]
            values["tool_calls"] = [
                {"id": id_, "name": function.get("name"), "arguments": function.get("arguments")}
                for id_, function in functions
            ]
        nodes.add(values)
    calls: list[dict[str, Any]] = []
    for turn in turns:
        if turn["text"] is None:
            calls.append({"node": None, "model": options.model, "error": _error(turn.get("error"))})
            break
        reason = turn["finish_reason"]
        calls.append(
            {
                "node": nodes.answer(turn),
                "model": options.model,
                "sampling": {**options.sampling.parameters(), "seed": turn["seed"]},
                "endpoint": options.path.removeprefix("/v1"),
                "finish_reason": reason if reason in FINISH_REASONS else None,
                "usage": {"prompt_tokens": turn["input_tokens"], "completion_tokens": turn["output_tokens"]},
            }
        )
    score = item.result.get("score")
    text = item.columns.get("prompt")
    task = {name: value for name, value in item.columns.items() if name not in _OF_TASK}
    task |= {"idx": item.number, "name": item.custom_id, "prompt": text if isinstance(text, str) else None}
    return {
        "version": 1,
        "id": item.custom_id,
        "task": {"type": "Task", "data": task},
        "agent": {"config": {"model": options.model, "max_turns": options.max_turns}, "name": "agent"},
        "tools": [tool.described for tool in tools],
        "nodes": nodes.nodes,
        "calls": calls,
        "rewards": {} if score is None else {"reward": {"score": score, "weight": 1.0}},
        "metrics": {
            "num_turns": float(len(turns)),
            "num_tool_calls": float(sum(len(turn["tool_calls"]) for turn in turns)),
        },
        "info": {"custom_id": item.custom_id, "number": item.number, "pred": item.result.get("pred")},
        "is_completed": True,
        "ok": item.state == "completed",
        "stop_condition": item.result.get("stop") if item.state == "completed" else "error",
        "errors": [] if item.error is None else [_error(item.error)],
        "timing": {"start": item.started_at or 0.0},
    }


class _Nodes:
    """The messages of a trace. A turn whose prompt is another than the tokens so far begins a branch at the root."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self._path: list[dict[str, Any]] = []
        self._last: int | None = None

    def add(self, message: dict[str, Any], **values: Any) -> None:
        tokens: dict[str, list[Any]] = {"token_ids": [], "mask": [], "logprobs": []}
        self.nodes.append({"parent": self._last, "message": message, "sampled": False, **tokens, **values})
        self._last = len(self.nodes) - 1
        self._path.append(message)

    def answer(self, turn: Mapping[str, Any]) -> int:
        """Add the answer of a turn and the results of its calls. Return the node of the answer."""
        tokens = turn.get("tokens")
        if tokens is not None and not tokens["goes_on"] and any(node["token_ids"] for node in self.nodes):
            path, self._path, self._last = self._path, [], None
            for message in path:
                self.add(message)
        values: dict[str, Any] = {}
        if tokens is not None:
            prompt, response = tokens["prompt_ids"], tokens["response_ids"]
            mask = [*[False] * len(prompt), *[True] * len(response)]
            values = {"token_ids": [*prompt, *response], "mask": mask, "logprobs": tokens["logprobs"] or []}
        calls = [{name: use[name] for name in ("id", "name", "arguments")} for use in turn["tool_calls"]]
        answer = {"role": "assistant", "content": turn["text"] or None, "reasoning_content": turn.get("reasoning")}
        self.add({**answer, "tool_calls": calls or None}, sampled=True, **values)
        node = len(self.nodes) - 1
        for use in turn["tool_calls"]:
            self.add({"role": "tool", "tool_call_id": use["id"], "content": use["result"], "name": use["name"]})
        return node


def _error(error: Mapping[str, Any] | None) -> dict[str, Any]:
    details = error or {}
    return {"type": str(details.get("code") or "no_answer"), "message": str(details.get("message") or "")}


_OF_TASK = {
    *("idx", "name", "description", "prompt", "system_prompt", "image", "workdir"),
    *("network_allow", "network_block", "artifacts"),
}
"""Fields of a task of `verifiers`, which an input's columns of these names are not."""
