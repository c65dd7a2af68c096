"""What is wrong with a request, and what a plan keeps of it: for batches, jobs and previews."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from batchyard.endpoints.bodies.validation import validation_error
from batchyard.endpoints.catalog import ENDPOINTS
from batchyard.endpoints.guards import GUARDED, REPETITION, Guard, guarded
from batchyard.models import ModelSpec, newer, served_by_name
from batchyard.request_lines.lines import REFUSED, LineError
from batchyard.wording import MAX_LIST, cut, nearest, quoted
from inference.engine import Capabilities, EngineAnswer
from inference.engines import registry
from inference.requests import media, ordering
from inference.requests.context_length import ContextLength
from inference.requests.ordering import fingerprint

StepCheck: TypeAlias = Callable[[Mapping[str, Any]], tuple[str, str] | None]
"""Returns which parameter of a body a step cannot use, and why."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is known of a request without running it. `order_key` sorts those with a common prefix together.

    `fingerprint` is of all that its answer depends on; None if that depends on chance.
    """

    output_limit: int | None
    order_key: bytes
    fingerprint: bytes | None


class RequestChecker:
    def __init__(
        self,
        models: Mapping[str, ModelSpec],
        step_checks: Iterable[StepCheck] = (),
        models_file: Path | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard
        self._specs = specs = served_by_name(models)
        self._models_file = models_file
        self._step_checks = list(step_checks)
        self._model = functools.cache(lambda name: _Model(specs[name]))

    def check(self, endpoint: str, request: Mapping[str, Any]) -> str:
        """Check a request and return the model that answers it: of an adapter, its base. Raises LineError."""
        _check_envelope(request, endpoint)
        body = request["body"]
        name = body.get("model")
        if not isinstance(name, str) or not name:
            raise LineError("invalid_request", "The body names no model.", "body.model")
        if name not in self._specs:
            near, names = nearest(name, self._specs), cut(", ".join(sorted(self._specs)), MAX_LIST)
            hint = f" Did you mean {near!r}?" if near else ""
            if self._models_file is not None and (remedy := newer(self._models_file, name)):
                hint = f" But {remedy}."
            raise LineError(
                "model_not_found",
                f"The provided model {quoted(name)} is not supported here; served: {names}.{hint}",
                "body.model",
            )
        model = self._model(name)
        if endpoint not in model.spec.endpoints:
            raise LineError(
                "unsupported_parameter",
                f"The model {name!r} does not serve {endpoint}; it serves {', '.join(model.spec.endpoints)}.",
                "url",
            )
        if too_many := media.too_many_parts(body):
            raise LineError("invalid_request", too_many, "body")
        invalid = validation_error(endpoint, body, passed_on=model.engine.passes_on)
        if invalid is not None:
            raise LineError("invalid_request", invalid[1], invalid[0])
        if body.get("stream"):
            raise LineError(
                "streaming_unsupported", "Streaming is not supported in batches; leave 'stream' out.", "body.stream"
            )
        unsupported = media.reaching(model.spec, body) or model.engine.unsupported(model.spec, endpoint, body)
        if unsupported is not None:
            raise LineError("unsupported_parameter", unsupported[1], unsupported[0])
        for check in self._step_checks:
            unusable = check(body)
            if unusable is not None:
                raise LineError("invalid_request", unusable[1], unusable[0])
        return model.spec.name

    def guarded(self, endpoint: str, model: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return a checked body with the parameter of its guard, if it has one. Raises LineError."""
        known = self._model(model)
        if endpoint not in GUARDED or not (self._guard or known.spec.guard):
            return body
        if known.engine.unsupported(known.spec, endpoint, REPETITION) is not None:
            message = f"The engine {known.spec.engine} of model {model!r} cannot end answers that repeat themselves."
            raise LineError("unsupported_parameter", f"{message} Leave out the guard.", "guard")
        return guarded(body)

    def refusal(self, endpoint: str, model: str, body: dict[str, Any], size: int) -> EngineAnswer | None:
        """Return the answer to a checked request that no engine will run: too long, or forbidden media.

        None if one may. `size`: bytes of `body` as JSON.
        """
        known = self._model(model)
        return known.context_length.refusal(endpoint, body, size) or media.refusal(known.spec, body)

    def prepare(self, endpoint: str, model: str, body: dict[str, Any], body_json: bytes) -> Prepared | EngineAnswer:
        """Return what the plan keeps of a checked request, or the answer of one that no engine will run."""
        refusal = self.refusal(endpoint, model, body, len(body_json))
        if refusal is not None:
            return refusal
        # The order key and the fingerprint each serialise their share of the body again, with sorted keys: the engine
        # gets the client's key order, but requests that differ in it only are alike.
        return Prepared(
            output_limit=ENDPOINTS[endpoint].output_limit(body),
            order_key=ordering.order_key(endpoint, body),
            fingerprint=fingerprint(endpoint, body),
        )


class _Model:
    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.engine: type[Capabilities] = registry.capabilities(spec.engine)
        self.context_length = ContextLength(spec, simulated=self.engine.simulated)


def _check_envelope(request: Mapping[str, Any], endpoint: str) -> None:
    """Check custom_id, method, url and body. Raises LineError."""
    refusal = request.get(REFUSED)
    if isinstance(refusal, dict) and "body" not in request:  # a row of a table that made no request
        code, message, param = (str(refusal.get(name) or "") for name in ("code", "message", "param"))
        raise LineError(code or "invalid_request", message, param or None)
    for name in ("custom_id", "method", "url", "body"):
        if request.get(name) is None:
            raise LineError("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    if not isinstance(request["custom_id"], str):
        raise LineError("invalid_request", "'custom_id' must be a string.", "custom_id")
    if request["method"] != "POST":
        raise LineError("invalid_method", "'method' must be 'POST'.", "method")
    if request["url"] != endpoint and request["url"] not in ENDPOINTS[endpoint].aliases:
        url = f" It is {quoted(request['url'])}, not {endpoint!r}." if isinstance(request["url"], str) else ""
        message = f"The URL provided for this request does not match the batch endpoint.{url}"
        raise LineError("invalid_url", message, "url")
    if not isinstance(request["body"], dict):
        raise LineError("invalid_request", "'body' must be an object.", "body")
