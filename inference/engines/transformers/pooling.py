"""Vectors, scores and labels: one pass of the model over each input, no generation."""

from __future__ import annotations

import base64
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

from batchyard.endpoints import catalog
from batchyard.endpoints.bodies.scoring import PAIRS, bare
from inference.engine import EngineAnswer
from inference.engines import response_bodies
from inference.engines.transformers.inputs import InputPair, Inputs, Refused, each_request
from inference.heads import Head

if TYPE_CHECKING:
    import torch

_MODULES = "torch.nn.modules."
_POOLING = "1_Pooling/config.json"
"""The file in which sentence-transformers says how tokens become a vector."""
_SCORED = (catalog.SCORE.path, catalog.RERANK.path)
Vector = list[float]
Pooling = Literal["mean", "cls", "lasttoken"]


@dataclass
class PoolingRequest:
    """A request with its inputs: texts, or pairs of them. `queries`: how many of the first inputs are queries."""

    body: dict[str, Any]
    inputs: list[InputPair]
    queries: int = 0

    @property
    def tokens(self) -> int:
        return sum(len(pair.tokens) for pair in self.inputs)


@dataclass
class Pooler:
    """Answers embeddings, scores, rankings and classifications, as vLLM does with the same model.

    Vectors come from the last hidden states of the real tokens, and have length 1. A cross-encoder scores a query and a
    document as one input; any other model scores them by the cosine of their vectors.
    """

    model: Any
    inputs: Inputs
    head: Head | None
    pooling: Pooling
    padding: int
    batch_size: int
    on_step: Callable[[], None]

    def __post_init__(self) -> None:
        self._activate = activation(self.model.config) if self.head in ("classify", "score") else None

    def answers(
        self, endpoint: str, bodies: list[dict[str, Any]], model: str, cancelled: threading.Event
    ) -> list[EngineAnswer]:
        """Answer bodies of one endpoint. `model`: the name that response bodies have."""
        requests = each_request(bodies, partial(self._request, endpoint))
        inputs = [pair for request in requests if isinstance(request, PoolingRequest) for pair in request.inputs]
        outputs = iter(self._outputs(inputs, cancelled))
        return [
            request
            if isinstance(request, EngineAnswer)
            else EngineAnswer(200, self._response(endpoint, model, request, [next(outputs) for _ in request.inputs]))
            for request in requests
        ]

    def _request(self, endpoint: str, body: dict[str, Any]) -> PoolingRequest:
        if endpoint not in _SCORED:
            return PoolingRequest(body, [InputPair(tokens, None) for tokens in self._texts(body.get("input"), "input")])
        (queries, left), (documents, right) = sides(body)
        if len(queries) not in (1, len(documents)):
            raise Refused(f"{left} and {right} must have equal lengths, or {left} one entry", param=left)
        if self._activate is None:
            texts = [*self._texts(queries, left), *self._texts(documents, right)]
            return PoolingRequest(body, [InputPair(tokens, None) for tokens in texts], len(queries))
        pairs = zip(queries * len(documents) if len(queries) == 1 else queries, documents, strict=True)
        return PoolingRequest(body, [self.inputs.pair(query, document, right) for query, document in pairs])

    def _texts(self, value: Any, param: str) -> list[list[int]]:
        prompts = self.inputs.prompts(value, param)
        for prompt in prompts:
            self.inputs.room(prompt, param, 0)
        return prompts

    def _outputs(self, inputs: Sequence[InputPair], cancelled: threading.Event) -> list[Vector]:
        """Return the model's output for each input: its vector, or its labels' logits. Alike lengths run together."""
        outputs: list[Vector] = [[] for _ in inputs]
        order = sorted(range(len(inputs)), key=lambda index: len(inputs[index].tokens))
        for start in range(0, len(order), self.batch_size):
            if not cancelled.is_set():
                batch = order[start : start + self.batch_size]
                for index, output in zip(batch, self._run([inputs[index] for index in batch]), strict=True):
                    outputs[index] = output
                self.on_step()
        return outputs

    def _run(self, batch: Sequence[InputPair]) -> list[Vector]:
        import torch

        # Padding on the right: a causal model never attends to it, and the mask hides it from any other.
        width = max(len(pair.tokens) for pair in batch)

        def padded(rows: Iterator[Sequence[int]], value: int) -> torch.Tensor:
            return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], device=self.model.device)

        inputs = {
            "input_ids": padded((pair.tokens for pair in batch), self.padding),
            "attention_mask": padded(([1] * len(pair.tokens) for pair in batch), 0),
        }
        if any(pair.segments for pair in batch):
            inputs["token_type_ids"] = padded((pair.segments or [0] * len(pair.tokens) for pair in batch), 0)
        with torch.inference_mode():
            if self._activate is not None:
                logits: list[Vector] = self.model(**inputs).logits.float().cpu().tolist()
                return logits
            states = self.model.base_model(**inputs).last_hidden_state.float()
            pooled = _pooled(states, inputs["attention_mask"], self.pooling)
            vectors: list[Vector] = torch.nn.functional.normalize(pooled, dim=-1).cpu().tolist()
        return vectors

    def _response(self, endpoint: str, model: str, request: PoolingRequest, outputs: list[Vector]) -> dict[str, Any]:
        body, name = request.body, uuid.uuid4().hex
        data: list[dict[str, Any]]
        if endpoint == catalog.EMBEDDINGS.path:
            pack = body.get("encoding_format") == "base64"
            data = []
            for index, output in enumerate(outputs):
                vector = np.array(output, np.float32)
                embedding = base64.b64encode(vector.tobytes()).decode() if pack else vector
                data.append({"object": "embedding", "index": index, "embedding": embedding})
            return response_bodies.listed(f"embd-{name}", model, data, request.tokens)
        if self._activate is not None and body.get("use_activation") is not False:
            outputs = [self._activate(logits) for logits in outputs]
        if endpoint == catalog.CLASSIFY.path:
            data = []
            for index, output in enumerate(outputs):
                label = self.model.config.id2label.get(max(range(len(output)), key=output.__getitem__))
                data.append({"index": index, "label": label, "probs": output, "num_classes": len(output)})
            return response_bodies.listed(f"classify-{name}", model, data, request.tokens)
        if self._activate is None:
            scores = cosines(outputs[: request.queries], outputs[request.queries :])
        else:
            scores = [output[0] for output in outputs]
        if endpoint == catalog.RERANK.path:
            (_, (documents, _)), top = sides(body), body.get("top_n")
            shown = body.get("return_documents") is not False
            name = f"rerank-{name}"
            return response_bodies.ranking(name, model, documents, scores, top=top, tokens=request.tokens, shown=shown)
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
        return response_bodies.listed(f"score-{name}", model, data, request.tokens)


def pooling_of(source: str, revision: str | None) -> Pooling:
    """Return how tokens become a vector, by default their mean. Raises ValueError for an unknown way."""
    from transformers.utils import cached_file

    missing = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    file = cached_file(source, _POOLING, revision=revision, **missing)
    if file is None:
        return "mean"
    config = json.loads(Path(file).read_bytes())
    named = [config.get("pooling_mode"), *(name for name, value in config.items() if value is True)]
    names = [str(name).removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for name in named]
    pooling = next((way for way in get_args(Pooling) if way in names), None)
    if pooling is None:
        raise ValueError(f"{_POOLING} names none of {', '.join(get_args(Pooling))}, which engine transformers can")
    return cast(Pooling, pooling)


def _pooled(states: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Return a vector of each input's states (inputs, tokens, size); `mask` has ones where its tokens are."""
    import torch

    if pooling == "cls":
        return states[:, 0]
    if pooling == "lasttoken":
        return states[torch.arange(len(states)), mask.sum(1) - 1]
    weights = mask.unsqueeze(-1).float()
    return (states * weights).sum(1) / weights.sum(1)


def sides(body: Mapping[str, Any]) -> list[tuple[list[Any], str]]:
    """Return queries and documents, each with its parameter. Raises Refused without texts."""
    names = next(
        ((left, right) for left, right in (("query", "documents"), *PAIRS) if body.get(left) and body.get(right)), None
    )
    if names is None:
        raise Refused("queries and documents are missing", param="documents", code="missing_required_parameter")
    values = [(value if isinstance(value := bare(body[name]), list) else [value], name) for name in names]
    for texts, name in values:
        if not all(isinstance(text, str) for text in texts):
            raise Refused(f"engine transformers takes text only in {name}", param=name, code="invalid_type")
    return values


def activation(config: Any) -> Callable[[Vector], Vector]:
    """Return what makes scores of logits, by vLLM's rules. Raises ValueError if torch has no such function."""
    import torch

    named = (getattr(config, "sentence_transformers", None) or {}).get("activation_fn")
    named = named or getattr(config, "sbert_ce_default_activation_function", None)
    kind = getattr(config, "problem_type", None)
    function: Callable[[torch.Tensor], torch.Tensor] = torch.nn.Softmax(-1) if config.num_labels > 1 else torch.sigmoid
    if kind == "regression":
        function = torch.nn.Identity()
    elif kind == "multi_label_classification":
        function = torch.sigmoid
    elif kind is None and named is not None:
        last = named.rpartition(".")[2]
        if not named.startswith(_MODULES) or not hasattr(torch.nn, last):
            raise ValueError(f"the model's config.json names the activation {named}, which is none of {_MODULES}*")
        if last not in ("Sigmoid", "Softmax"):
            function = getattr(torch.nn, last)()

    def activate(logits: Vector) -> Vector:
        activated: Vector = function(torch.tensor(logits)).tolist()
        return activated

    return activate


def cosines(queries: Sequence[Vector], documents: Sequence[Vector]) -> list[float]:
    """Return the cosine of each document's vector and its query's, or the only query's. All have length 1."""
    pairs = zip(list(queries) * len(documents) if len(queries) == 1 else queries, documents, strict=True)
    return [sum(one * other for one, other in zip(query, document, strict=True)) for query, document in pairs]
