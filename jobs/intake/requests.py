"""A recipe's requests as the core runs them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from batchyard import json_lines
from batchyard.models import ModelSpec, served_by_name
from batchyard.recipes import Answer, Item
from batchyard.recipes.program import Request
from batchyard.request_lines.lines import LineError
from batchyard.tables.json_text import not_a_number
from inference.engine import EngineAnswer
from inference.engines import registry
from tasks.intake.requests import RequestChecker


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that stands in no segment yet. `ask` is a digest of its stage, endpoint and body."""

    position: int
    life: int
    turn: int
    stage: str
    visit: int
    sample: int
    retry: int
    model: str
    custom_id: str
    body: bytes
    ask: bytes
    output_tokens: int | None
    order_key: bytes
    fingerprint: bytes | None


class Preparer:
    def __init__(self, models: Mapping[str, ModelSpec], *, shares_answers: bool = True) -> None:
        self._models = served_by_name(models)
        self._shares_answers = shares_answers
        self._checker = RequestChecker(models)

    def prepare(self, item: Item, position: int, request: Request, retry: int = 0) -> PreparedRequest | Answer:
        """Return the request for a segment, or the answer that refuses it."""
        body = dict(request.body)
        try:
            self._add_structure(request, body)
            custom_id = request.custom_id(item, retry)
            line = {"custom_id": custom_id, "method": "POST", "url": request.endpoint, "body": body}
            model = self._checker.check(request.endpoint, line)
            body = self._checker.guarded(request.endpoint, model, body)
        except LineError as error:
            return _refused(error.message, error.code, error.param)
        except (TypeError, ValueError) as error:  # a body that is no JSON
            return _refused(str(error), "invalid_request", None)
        try:
            body_json = json_lines.dumps(body)
            # orjson writes a number that is none as null, too.
            if b"null" in body_json and (constant := not_a_number(json.dumps(body, default=str))) is not None:
                raise TypeError(f"it has {constant}")
        except TypeError as error:
            return _refused(f"the body is no JSON: {error}", "invalid_request", None)
        prepared = self._checker.prepare(request.endpoint, model, body, body_json)
        if isinstance(prepared, EngineAnswer):
            details = (prepared.body or {}).get("error", {})
            return _refused(str(details.get("message")), details.get("code"), details.get("param"))
        asked = json_lines.dumps([request.stage, request.endpoint, body], option=orjson.OPT_SORT_KEYS)
        return PreparedRequest(
            position=position,
            life=item.life,
            turn=request.turn,
            stage=request.stage,
            visit=request.visit,
            sample=request.sample,
            retry=retry,
            model=model,
            custom_id=custom_id,
            body=body_json,
            ask=hashlib.blake2b(asked, digest_size=16).digest(),
            output_tokens=prepared.output_limit,
            order_key=prepared.order_key,
            fingerprint=prepared.fingerprint if self._shares_answers else None,
        )

    def _add_structure(self, request: Request, body: dict[str, Any]) -> None:
        for kind, value in request.structure.items():
            spec = self._models.get(request.model)
            parameters = None if spec is None else registry.capabilities(spec.engine).structure(kind, value)
            if spec is not None and parameters is None:
                message = f"The engine {spec.engine!r} of model {request.model!r} has no structured output by {kind!r}."
                raise LineError("unsupported_parameter", message, kind)
            body.update(parameters or {})


def _refused(message: str, code: str | None, param: str | None) -> Answer:
    return Answer(
        ok=False, error={"code": code or "invalid_request", "message": message, "param": param}, status_code=400
    )
