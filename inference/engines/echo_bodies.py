"""Response bodies of engine `echo`: the shape of each endpoint, filled with what the request says. None is a model's.

Vectors and scores follow from the words alone, so equal texts have equal ones. Tokens are words.
"""

import base64
import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from batchyard.endpoints import catalog
from batchyard.endpoints.bodies.audio import decoded
from batchyard.endpoints.bodies.common import prompts
from batchyard.endpoints.bodies.messages import turns
from inference.engines import response_bodies

Body = Mapping[str, Any]
DIMENSIONS = 8
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>\s*", re.DOTALL)
_THOUGHT = re.compile(r"<think>(.*?)</think>\s*", re.DOTALL)
_PLANTED = re.compile(
    r"<(?P<model>[\w.-]+) (?P<probability>0?\.\d+|[01]|1\.0+)>(?P<answer>.*?)</(?P=model)>", re.DOTALL
)


class Generated(NamedTuple):
    """What the engine has generated: the text, its number of tokens, and why it ended there (OpenAI's name).

    `probability` is that of all tokens together.
    """

    text: str
    tokens: int
    finish_reason: str
    probability: float = 1.0


def prompt_text(body: Body) -> str:
    """Return the last message, or whatever else is the prompt, as text."""
    messages = turns(body.get("messages")) or body.get("input")
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        return _text(messages[-1].get("content", messages[-1].get("output")))
    if (url := body.get("file_url")) is not None:
        if body.get("prompt") or url[:5].lower() != "data:":
            return str(body.get("prompt") or url)
        media_type, content = decoded(url)
        return f"{media_type} {len(content)}"
    keys = ("prompt", "input", "query", "queries", "text_1", "data_1", "state", "tokens", "token_ids")
    return _text(next((body[key] for key in keys if body.get(key) is not None), ""))


def planted(text: str, model: str) -> Generated | None:
    """Return the answer that a text plants for a model: `<model 0.8>answer</model>`; None without one."""
    for match in _PLANTED.finditer(text):
        if match["model"] == model:
            return Generated(match["answer"], _words(match["answer"]), "stop", float(match["probability"]))
    return None


def response(endpoint: str, request: Body, number: int, completion: Generated) -> dict[str, Any]:
    """Return the response body of one request."""
    return _RESPONSES[endpoint](request, number, completion)


def _text(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return " ".join(_text(part.get("text", "")) for part in value)
    if isinstance(value, dict) and ("content" in value or "text" in value):
        return _text(value.get("content", value.get("text")))
    return value if isinstance(value, str) else "" if value is None else str(value)


def _words(text: str) -> int:
    return len(text.split())


def _chat(request: Body, number: int, completion: Generated) -> dict[str, Any]:
    (text, calls), thought = _calls(request, completion.text), _THOUGHT.match(completion.text)
    message: dict[str, Any] = {"role": "assistant", "content": completion.text}
    if calls:
        functions = [
            {"id": f"call-{number}-{index}", "type": "function", "function": call} for index, call in enumerate(calls)
        ]
        message |= {"content": text or None, "tool_calls": functions}
        completion = completion._replace(finish_reason="tool_calls")
    elif thought:
        message |= {"reasoning_content": thought[1], "content": completion.text[thought.end() :]}
    body = _choices(request, completion, f"chatcmpl-echo-{number}", "chat.completion", {"message": message})
    if request.get("logprobs"):
        for choice in body["choices"]:
            choice["logprobs"] = {"content": list(_logprobs(completion))}
    if thought and not calls:
        reasoning_tokens = _words(thought[1]) * len(body["choices"])
        body["usage"]["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return body


def _logprobs(completion: Generated) -> Iterator[dict[str, Any]]:
    """Yield the tokens of an answer: the first has all of its probability, the others are certain."""
    logprob = math.log(max(completion.probability, 1e-300))
    for word in completion.text.split():
        yield {"token": word, "logprob": logprob, "bytes": None, "top_logprobs": []}
        logprob = 0.0


def _calls(request: Body, text: str) -> tuple[str, list[dict[str, str]]]:
    """Return the text before the calls of tools in a text, and these calls; none if the request has no tools."""
    calls = []
    for match in _CALL.finditer(text) if request.get("tools") else ():
        try:
            call = json.loads(match[1])
        except json.JSONDecodeError:
            return text, []
        arguments = call.get("arguments", {})
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append({"name": str(call.get("name")), "arguments": written})
    return (_CALL.sub("", text).strip(), calls) if calls else (text, [])


def _choices(request: Body, completion: Generated, name: str, kind: str, output: Body) -> dict[str, Any]:
    samples, words = request.get("n") or 1, _words(prompt_text(request))
    reason, tokens = completion.finish_reason, completion.tokens * samples
    return {
        "id": name,
        "object": kind,
        "created": int(time.time()),
        "choices": [{"index": index, **output, "logprobs": None, "finish_reason": reason} for index in range(samples)],
        "usage": {"prompt_tokens": words, "completion_tokens": tokens, "total_tokens": words + tokens},
        "model": request["model"],
    }


def _responses(request: Body, number: int, completion: Generated) -> dict[str, Any]:
    text, calls = _calls(request, completion.text)
    body = response_bodies.response(
        f"echo-{number}",
        request["model"],
        text,
        full=completion.finish_reason == "length",
        tokens=(_words(prompt_text(request)), completion.tokens),
        instructions=request.get("instructions"),
    )
    if calls:
        names = [f"{number}-{index}" for index in range(len(calls))]
        items = [
            {"type": "function_call", "id": f"fc-{name}", "call_id": f"call-{name}", "status": "completed", **call}
            for name, call in zip(names, calls, strict=True)
        ]
        body["output"] = [*(body["output"] if text else []), *items]
    return body


def _messages(request: Body, number: int, completion: Generated) -> dict[str, Any]:
    return response_bodies.message(
        f"echo-{number}",
        request["model"],
        completion.text,
        full=completion.finish_reason == "length",
        tokens=(_words(prompt_text(request)), completion.tokens),
    )


def _pooling(request: Body, number: int, _: Generated) -> dict[str, Any]:
    body = _vectors(request, number, "pooling", "data")
    for entry in body["data"]:
        if not isinstance(entry["data"], str):
            entry["data"] = entry["data"].tolist()
    return body


def _vectors(request: Body, number: int, kind: str, key: str) -> dict[str, Any]:
    texts = list(_inputs(request))
    vectors = [_vector(text, request.get("dimensions") or DIMENSIONS) for text in texts]
    packed = request.get("encoding_format") == "base64"
    data = [
        {"object": kind, "index": index, key: base64.b64encode(vector.tobytes()).decode() if packed else vector}
        for index, vector in enumerate(vectors)
    ]
    return _listed(request, f"embd-echo-{number}", data, texts)


def _classify(request: Body, number: int, _: Generated) -> dict[str, Any]:
    data, texts = [], list(_inputs(request))
    for index, text in enumerate(texts):
        first = float(_vector(text)[0])
        label = "LABEL_0" if first >= 0.5 else "LABEL_1"
        data.append({"index": index, "label": label, "probs": [first, 1 - first], "num_classes": 2})
    return _listed(request, f"classify-echo-{number}", data, texts)


def _score(request: Body, number: int, _: Generated) -> dict[str, Any]:
    left, right = ([_text(text) for text in (side if isinstance(side, list) else [side])] for side in _sides(request))
    pairs = list(zip(left * len(right) if len(left) == 1 else left, right, strict=False))
    data = [{"index": index, "object": "score", "score": _overlap(*pair)} for index, pair in enumerate(pairs)]
    return _listed(request, f"score-echo-{number}", data, [*left, *right])


def _rerank(request: Body, number: int, _: Generated) -> dict[str, Any]:
    documents = request["documents"] if isinstance(request["documents"], list) else [request["documents"]]
    query, texts = _text(request["query"]), [_text(document) for document in documents]
    scores = [_overlap(query, text) for text in texts]
    tokens = sum(map(_words, [query, *texts]))
    name, model, top = f"rerank-echo-{number}", request["model"], request.get("top_n")
    shown = request.get("return_documents") is not False
    return response_bodies.ranking(name, model, texts, scores, top=top, tokens=tokens, shown=shown)


def _decisions(request: Body, number: int, _: Generated) -> dict[str, Any]:
    answers = {name: _decision(question) for name, question in request["questions"].items()}
    words = _words(_text(request["state"]))
    return {
        "id": f"decision-echo-{number}",
        "object": "structured_decision",
        "created": int(time.time()),
        "model": request["model"],
        "answers": answers,
        "usage": {"input_tokens": words, "output_tokens": len(answers)},
        "diagnostics": {name: {"label_mass": 1.0, "argmax_is_label": True} for name in answers},
    }


def _decision(question: Body) -> dict[str, Any]:
    """Return an answer that gives the first option all of the probability."""
    kind, criteria = question["type"], question.get("criteria")
    if kind == "noul":
        return {"type": kind, "noul": 1.0, "probabilities": {"yes": 1.0, "no": 0.0}, "confidence": 1.0}
    names = [str(name) for name in (criteria or ())]
    if kind == "score":
        probabilities = {str(index): float(index == 0) for index in range(len(names))}
        legend = {str(index): name for index, name in enumerate(names)}
        return {"type": kind, "score": 0.0, "legend": legend, "probabilities": probabilities, "confidence": 1.0}
    probabilities = {name: float(index == 0) for index, name in enumerate(names)}
    return {"type": kind, "choice": next(iter(names), None), "probabilities": probabilities, "confidence": 1.0}


def _generative_scoring(request: Body, number: int, _: Generated) -> dict[str, Any]:
    query, items = _text(request["query"]), [_text(item) for item in request["items"]]
    data = [{"index": index, "object": "score", "score": _overlap(query, item)} for index, item in enumerate(items)]
    return _listed(request, f"generative-scoring-echo-{number}", data, [query, *items])


def _moderations(request: Body, number: int, _: Generated) -> dict[str, Any]:
    texts = request["input"] if isinstance(request["input"], list) else [request["input"]]
    results = [{"flagged": False, "categories": {"violence": False}, "category_scores": {"violence": 0.0}}]
    inputs = 1 if isinstance(texts[0], dict) else len(texts)  # parts are one input
    return {"id": f"modr-echo-{number}", "model": request["model"], "results": results * inputs}


def _generate(request: Body, number: int, completion: Generated) -> dict[str, Any]:
    tokens = [_token(word) for word in completion.text.split()]
    text = {"text": completion.text} if request.get("output_mode") == "text" else {}
    words, samples = len(request["token_ids"]), request["sampling_params"].get("n") or 1
    choice = {"token_ids": tokens, "finish_reason": completion.finish_reason, **text}
    generated = completion.tokens * samples
    return {
        "request_id": f"generate-echo-{number}",
        "model": request["model"],
        "output_mode": request.get("output_mode") or "tokens",
        "choices": [{"index": index, **choice} for index in range(samples)],
        "usage": {"prompt_tokens": words, "completion_tokens": generated, "total_tokens": words + generated},
    }


def _token(word: str) -> int:
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:2])


def _tokenize(request: Body, _number: int, _: Generated) -> dict[str, Any]:
    words = prompt_text(request).split()
    tokens = list(map(_token, words))
    strings = words if request.get("return_token_strs") else None
    return {"count": len(tokens), "max_model_len": 2**16, "tokens": tokens, "token_strs": strings}


def _count_tokens(request: Body, _number: int, _: Generated) -> dict[str, Any]:
    texts = [request.get("system"), *(message.get("content") for message in request["messages"])]
    return {"input_tokens": sum(_words(_text(text)) for text in texts)}


def _transcription(request: Body, _number: int, completion: Generated) -> dict[str, Any]:
    words, tokens = _words(request.get("prompt") or ""), completion.tokens
    usage = {"type": "tokens", "input_tokens": words, "output_tokens": tokens, "total_tokens": words + tokens}
    verbose: dict[str, Any] = {"language": request.get("language") or "en", "duration": 0.0, "segments": []}
    return {
        "text": completion.text,
        **(verbose if request.get("response_format") == "verbose_json" else {}),
        "usage": usage,
    }


def _inputs(request: Body) -> Iterator[str]:
    """Yield the texts of the inputs; messages are one."""
    if request.get("input") is None:
        yield prompt_text(request)
    else:
        yield from map(_text, prompts(request["input"]))


def _sides(request: Body) -> tuple[Any, Any]:
    for left, right in (("queries", "documents"), ("queries", "items"), ("text_1", "text_2")):
        if request.get(left) is not None and request.get(right) is not None:
            return request[left], request[right]
    return request["data_1"], request["data_2"]


def _listed(request: Body, name: str, data: list[dict[str, Any]], texts: list[str]) -> dict[str, Any]:
    return response_bodies.listed(name, request["model"], data, sum(map(_words, texts)))


def _vector(text: str, dimensions: int = DIMENSIONS) -> npt.NDArray[np.float32]:
    return np.divide(
        np.frombuffer(hashlib.shake_256(text.encode()).digest(dimensions), np.uint8), 255, dtype=np.float32
    )


def _overlap(left: str, right: str) -> float:
    """Return the share of words that two texts have in common (Jaccard)."""
    words = [set(text.lower().split()) for text in (left, right)]
    return len(words[0] & words[1]) / (len(words[0] | words[1]) or 1)


_RESPONSES: dict[str, Callable[[Body, int, Generated], dict[str, Any]]] = {
    catalog.CHAT.path: _chat,
    catalog.COMPLETIONS.path: lambda request, number, completion: _choices(
        request, completion, f"cmpl-echo-{number}", "text_completion", {"text": completion.text}
    ),
    catalog.RESPONSES.path: _responses,
    catalog.MESSAGES.path: _messages,
    catalog.EMBEDDINGS.path: lambda request, number, _: _vectors(request, number, "embedding", "embedding"),
    catalog.SCORE.path: _score,
    catalog.RERANK.path: _rerank,
    catalog.CLASSIFY.path: _classify,
    catalog.POOLING.path: _pooling,
    catalog.SYSTEMONE.path: _decisions,
    catalog.GENERATIVE_SCORING.path: _generative_scoring,
    catalog.MODERATIONS.path: _moderations,
    catalog.GENERATE.path: _generate,
    catalog.TOKENIZE.path: _tokenize,
    catalog.DETOKENIZE.path: lambda request, *_: {"prompt": " ".join(map(str, request["tokens"]))},
    catalog.COUNT_TOKENS.path: _count_tokens,
    catalog.TRANSCRIPTIONS.path: _transcription,
    catalog.TRANSLATIONS.path: _transcription,
}
