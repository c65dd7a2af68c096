"""Envelopes: what an inline request leaves out of a file's line, because the batch says it already."""

from collections.abc import Mapping

from batchyard import json_lines
from store.artifacts import Artifacts, ArtifactWriter

_NO_URL = b'{"url":null,'


class Envelopes:
    """Gives inline requests without a method or a url those of their batch.

    The batch's endpoint may stand behind the requests in the body, so urls are written once all is read.
    """

    def __init__(self) -> None:
        self._incomplete = False

    def line(self, _place: str, request: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the line of a request: with a method, and with the url first if it has none."""
        line = {**request, "method": request["method"] if _has(request, "method") else b'"POST"'}
        if _has(request, "url"):
            return line
        self._incomplete = True
        return {"url": b"null"} | {key: value for key, value in line.items() if key != "url"}

    def stored(self, artifacts: Artifacts, lines: ArtifactWriter, endpoint: str) -> ArtifactWriter:
        """Store lines that were written but not committed, each with a url. Raises UnavailableError."""
        if not self._incomplete:
            lines.commit()
            return lines
        with_url = b'{"url":' + json_lines.dumps(endpoint) + b","
        with artifacts.create() as complete, lines.written() as source:
            for line in source:
                complete.write(with_url + line.removeprefix(_NO_URL) if line.startswith(_NO_URL) else line)
        lines.discard()
        return complete


def _has(request: Mapping[str, bytes], key: str) -> bool:
    return request.get(key, b"null") != b"null"
