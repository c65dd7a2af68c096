"""Inline requests: the list `requests` of a JSON body becomes lines of a file while the body is read."""

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import orjson

from batchyard import json_lines
from batchyard.errors import RequestError, TooLargeError
from batchyard.wording import MAX_NAME, cut, quoted

KEY = "requests"
_CHUNK_BYTES = 256 * 1024
_BLANKS = re.compile(r"[ \t\n\r]*")
_BEHIND_A_VALUE = re.compile(r"[ \t\n\r]*[,:\]}]|[ \t\n\r]+\Z")
_CUT_CHARACTERS = 16
"""The decoder refuses a value that is cut off at most so many characters before its end, unless it is a text."""
_DECODER = json.JSONDecoder(parse_int=float)  # whole numbers have a limit of digits

Line = Callable[[str, Mapping[str, bytes]], Mapping[str, bytes]]
"""Makes a line of a request. Both map keys to the JSON of their values; the text is the request's place in the body.

Raises RequestError.
"""


class InlineBody:
    """A JSON object that may have a list of requests; one of these is in memory at a time.

    Requests become lines as they are, without line feeds: what is wrong with one, such as a key that is repeated in its
    body, is found as in the lines of a file.

    `rest`: the other values by key; complete when the lines have been read.
    """

    def __init__(self, source: IO[bytes], *, max_requests: int, max_request_bytes: int, max_rest_bytes: int) -> None:
        self.rest: dict[str, Any] = {}
        self._text = _Text(source, max_request_bytes)
        self._max_requests = max_requests
        self._max_rest_bytes = max_rest_bytes

    def lines(self, line: Line) -> Iterator[bytes]:
        """Read the body, and yield a line for each request.

        Raises:
            RequestError: the body is no JSON object, a request is none, or `line` refuses one.
            TooLargeError: there are too many requests, one is too large, or all the rest is.
        """
        rest_bytes, keys = 0, set[str]()
        for _ in self._text.entries("{}", "The body", "invalid_json"):
            key = self._text.key(keys)
            if key == KEY and self._text.next() != "n":  # null is none
                for number, _ in enumerate(self._text.entries("[]", f"'{KEY}'"), 1):
                    yield self._line(number, line)
                continue
            value = self._text.value()
            rest_bytes += len(value)
            if rest_bytes > self._max_rest_bytes:
                raise TooLargeError(f"The body has more than {self._max_rest_bytes} bytes beside '{KEY}'.")
            if key != KEY:
                try:
                    self.rest[key] = json_lines.loads(value)
                except orjson.JSONDecodeError as error:  # NaN, which Python's decoder takes
                    reason = f"The value of '{cut(key, MAX_NAME)}' is not valid JSON: {error.msg}."
                    raise RequestError(reason, code="invalid_json") from None
        self._text.end()

    def _line(self, number: int, line: Line) -> bytes:
        if number > self._max_requests:
            raise TooLargeError(
                f"'{KEY}' has more than {self._max_requests} requests; split it, or raise BATCHYARD_MAX_REQUESTS.",
                code="too_many_tasks",
                param=KEY,
            )
        place = f"{KEY}.{number - 1}"
        keys = set[str]()
        request: dict[str, bytes] = {}
        for _ in self._text.entries("{}", f"'{place}' (request {number})"):
            key = self._text.key(keys)
            request[key] = self._text.value().encode().translate(_WITHOUT_LINE_FEEDS)
        members = (json_lines.dumps(key) + b":" + value for key, value in line(place, request).items())
        return b"{" + b",".join(members) + b"}\n"


_WITHOUT_LINE_FEEDS = bytes.maketrans(b"\r\n", b"  ")
"""Valid JSON has them between values only."""


class _Text:
    """The text of a JSON document, which is read as far as its next value needs."""

    def __init__(self, source: IO[bytes], max_value_bytes: int) -> None:
        self._source = source
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._max = max_value_bytes
        self._text = ""
        self._at = 0
        self._before = 0  # characters of the document before `_text`

    def next(self) -> str:
        """Return the next character that is not blank, an empty text at the end."""
        while True:
            self._at = _BLANKS.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches nothing, too
            if self._at < len(self._text) or not self._read():
                return self._text[self._at : self._at + 1]

    def entries(self, brackets: str, name: str, code: str = "invalid_type") -> Iterator[None]:
        """Stand before each entry of an object or a list in turn; the caller reads it."""
        kind = "an object" if brackets == "{}" else "a list"
        if self.next() != brackets[0]:
            if not self._before and not self._text:
                raise self._invalid("it is empty")
            raise RequestError(f"{name} must be {kind}.", code=code)
        self._at += 1
        if self.next() != brackets[1]:
            yield
        while self._take(f",{brackets[1]}") == ",":
            yield

    def key(self, keys: set[str]) -> str:
        """Read a key and its colon. Add it to the `keys` of the object. Raises RequestError."""
        if self.next() != '"':
            raise self._invalid("a key in quotes is missing")
        try:
            key = str(json_lines.loads(self.value()))
        except orjson.JSONDecodeError as error:  # half of a surrogate pair, which Python's decoder takes
            raise self._invalid(error.msg) from None
        self._take(":")
        if key in keys:
            raise self._invalid(f"the key {quoted(key)} is repeated in one object")
        keys.add(key)
        return key

    def value(self) -> str:
        """Read a value and return its JSON. Raises RequestError, TooLargeError."""
        self.next()
        while True:
            try:
                end, reason, is_cut = _DECODER.raw_decode(self._text, self._at)[1], "", False
            except json.JSONDecodeError as error:
                end, reason, is_cut = error.pos, error.msg, error.msg.startswith("Unterminated string")
            except RecursionError:
                raise self._invalid("it is nested too deep") from None
            if not reason and _BEHIND_A_VALUE.match(self._text, end):
                value, self._at = self._text[self._at : end], end
                return value
            is_cut = is_cut or len(self._text) - end <= _CUT_CHARACTERS
            if is_cut and len(self._text) - self._at > self._max:
                raise TooLargeError(
                    f"A value in the body is longer than {self._max} bytes, see character "
                    f"{self._before + self._at + 1}; shorten it, or raise BATCHYARD_MAX_LINE_BYTES.",
                    code="line_too_long",
                )
            at = self._before + end
            if not is_cut or not self._read():
                raise self._invalid(reason or "a comma or a bracket is missing", at)

    def end(self) -> None:
        if self.next():
            raise self._invalid("something follows its last bracket")

    def _take(self, characters: str) -> str:
        """Read the next character, one of these. Raises RequestError."""
        character = self.next()
        if not character or character not in characters:
            raise self._invalid(f"expected {' or '.join(map(repr, characters))}")
        self._at += 1
        return character

    def _read(self) -> bool:
        """Read on, at least as much as there is, so that a long value is decoded a few times only. False at the end."""
        rest = self._text[self._at :]
        pieces, missing = [], max(_CHUNK_BYTES, len(rest))
        while missing > 0 and (raw := self._source.read(missing)):  # it may arrive in smaller pieces
            pieces.append(raw)
            missing -= len(raw)
        ended = missing > 0
        try:
            text = self._decode(b"".join(pieces), final=ended)
        except UnicodeDecodeError as error:
            at = self._before + len(self._text) + len(error.object[: error.start].decode())
            raise self._invalid(f"it is not UTF-8: {error.reason}; send it as UTF-8", at) from None
        self._text, self._before, self._at = rest + text, self._before + self._at, 0
        return bool(text) or not ended

    def _invalid(self, reason: str, at: int | None = None) -> RequestError:
        """Return the refusal of a document that is not valid behind `at` characters, by default here."""
        place = (self._before + self._at if at is None else at) + 1
        return RequestError(f"The body is not valid JSON at character {place}: {reason}.", code="invalid_json")
