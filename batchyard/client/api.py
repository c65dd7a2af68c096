"""The API client: Batchyard's own routes and OpenAI's, with Batchyard's errors.

Not the `openai` package, whose import takes a second: a command would take longer to start than to run. httpx is
imported with the first client: `--help` and Tab completion do without it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from batchyard.backoff import Backoff, retry_after
from batchyard.client import output_files
from batchyard.client.address import address
from batchyard.errors import (
    AuthenticationError,
    BatchyardError,
    ConfigurationError,
    NotFoundError,
    RequestError,
    UnavailableError,
)
from batchyard.wording import NEWER, without_code

if TYPE_CHECKING:
    import httpx

_RETRIED = (408, 429)
"""Statuses after which the same request may succeed, beside those from 500 on."""
_BACKOFF = Backoff(first=0.5, longest=8.0, jitter=(0.75, 1.0))
_LONGEST_WAIT = 120.0
"""Seconds that a server may ask to wait for; one that asks for more is not asked again."""


class ApiClient:
    """A client of one server, with one key.

    Every call raises UnavailableError if the server cannot be reached or fails, and RequestError if it refuses.

    Raises ConfigurationError: the environment names a proxy for this server that cannot be used.
    """

    def __init__(self, url: str, key: str, *, max_retries: int = 2) -> None:
        self.url = url.rstrip("/")
        self.stays = True  # False for a server that ends with the command that has started it
        self._max_retries = max_retries
        self._http = _http(self.url, key)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> dict[str, Any]:
        """Send a request and return the JSON object of the response. None leaves a query field out."""
        return dict(self._send(method, path, json=body, params=_filled(query)).json())

    def get(self, path: str, **query: Any) -> bytes:
        """Return the body of a response that is no JSON object; None leaves a query field out."""
        return self._send("GET", path, params=_filled(query)).content

    def listed(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list, fetched page by page."""
        after = None
        while True:
            page = self.call("GET", path, limit=100, **query, after=after)
            yield from page["data"]
            if not page["has_more"]:
                return
            after = page["last_id"]

    def upload(self, file: Path, purpose: Literal["batch", "user_data"] = "batch") -> str:
        """Upload a file, streamed, and return its id."""
        with file.open("rb") as stream:
            answer = self._send("POST", "/files", data={"purpose": purpose}, files={"file": (file.name, stream)})
        return str(answer.json()["id"])

    def create(self, file_id: str | None = None, *, completion_window: str = "24h", **fields: Any) -> dict[str, Any]:
        """Create a batch and return it. `fields`: others of POST /v1/batches; None leaves one out."""
        body = {"input_file_id": file_id, "completion_window": completion_window, **fields}
        return self.call("POST", "/batches", _filled(body))

    def start(self, file: Path, form: Mapping[str, str], *, dry_run: bool = False) -> dict[str, Any]:
        """Create a batch of prompts or of compressed requests; `form` is that of POST /start.

        Return the answer, which has `batch_id`. A dry run creates none, and returns what it would be.
        """
        query = {"dry_run": "true"} if dry_run else {}
        with file.open("rb") as stream:
            files = {"file": (file.name, stream)}
            answer = self._send("POST", f"{self.url}/start", params=query, data=dict(form), files=files)
        return dict(answer.json())

    def batch(self, batch_id: str) -> dict[str, Any]:
        return self.call("GET", f"/batches/{batch_id}")

    def retry(self, batch_id: str, **fields: str | None) -> dict[str, Any]:
        """Create a batch of the requests without an answer, and return it.

        `fields`: `errors`, "passing" for those that would not fail again; `fixed_file_id`, of corrected requests.
        """
        return self.call("POST", f"/batches/{batch_id}/retry", _filled(fields))

    def work(self, name: str) -> dict[str, Any]:
        return self.call("GET", _path(name))

    def control(self, name: str, verb: Literal["pause", "resume", "cancel"]) -> dict[str, Any]:
        return self.call("POST", f"{_path(name)}/{verb}")

    def delete(self, name: str) -> None:
        """Delete a batch or a job that has ended, with all that it had."""
        self.call("DELETE", _path(name))

    def results(self, name: str, after: int) -> bytes:
        """Return the output lines of a batch or a job so far, in the order of their ends, without the first `after`."""
        return self.get(f"{_path(name)}/results", after=after)

    def events(self, name: str) -> Iterator[dict[str, Any]]:
        return self.listed(f"{_path(name)}/events")

    def batches(self, **query: str | None) -> Iterator[dict[str, Any]]:
        """Yield the batches of the key's project, newest first, fetched page by page. `query`: `status`."""
        return self.listed("/batches", **query)

    def find_file(self, file_id: str) -> dict[str, Any] | None:
        """Return a file, None if it was deleted or has expired."""
        try:
            return self.call("GET", f"/files/{file_id}")
        except NotFoundError:
            return None

    def page(self, name: str | None = None) -> str:
        """Return the address of the page of a batch or a job, or of the page of what runs."""
        return self.url + ("/" if name is None else quote(_path(name)))

    def models(self, *, engines: bool = False) -> list[dict[str, Any]]:
        return list(self.call("GET", "/models", engines="true" if engines else None)["data"])

    def knows_too_late(self, model: str) -> bool:
        """True if the server's models.toml names a model that was not there when the server started."""
        try:
            self.call("GET", f"/models/{model}")
        except NotFoundError as error:
            return NEWER in error.message
        return False

    def recipes(self) -> list[dict[str, Any]]:
        return list(self.call("GET", "/recipes")["data"])

    def create_job(self, *, dry_run: bool = False, **body: Any) -> dict[str, Any]:
        """Create a job from the body's fields and return it; a dry run returns its outlook."""
        return self.call("POST", "/jobs", body, dry_run="true" if dry_run else None)

    def job(self, job_id: str) -> dict[str, Any]:
        return self.call("GET", f"/jobs/{job_id}")

    def jobs(self, **query: str | None) -> Iterator[dict[str, Any]]:
        """Yield the jobs of the key's project, newest first. `query`: `status`, `recipe`, `parent_id`."""
        return self.listed("/jobs", **query)

    def project_id(self, name: str) -> str:
        """Return the id of a project. Raises NotFoundError."""
        for project in self.listed("/projects"):
            if project["name"] == name:
                return str(project["id"])
        raise NotFoundError(f"{self.url} has no project '{name}'; 'batchyard project list' shows those it has")

    def chunks(self, file_id: str) -> Iterator[bytes]:
        import httpx

        try:
            with closing(self._send("GET", f"/files/{file_id}/content", stream=True)) as response:
                yield from response.iter_bytes(1 << 20)
        except httpx.TransportError as error:
            raise self._away() from error

    def lines(self, file_id: str) -> Iterator[bytes]:
        """Yield a file's lines, without line feeds."""
        rest = b""
        for chunk in self.chunks(file_id):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from whole
        if rest:
            yield rest

    def content(self, file_id: str) -> bytes:
        return b"".join(self.chunks(file_id))

    def download(self, file_id: str | None, to: Path) -> None:
        """Stream a file's content to `to`, complete or not at all.

        None writes an empty file. Raises OSError.
        """
        with output_files.written(to) as part, part.open("wb") as stream:
            stream.writelines(() if file_id is None else self.chunks(file_id))

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Send a live request that is streamed, and yield the data of its events.

        Closing the iterator ends the request.

        Raises BatchyardError: an error in the stream, or it ends early; the answer is not whole.
        """
        import httpx

        from batchyard.endpoints.stream_end import StreamEnd  # most commands read no stream

        end = StreamEnd(body)
        early = UnavailableError(f"{self.url} has closed the connection before the answer was whole")
        try:
            with closing(self._send("POST", path, stream=True, json={**body, "stream": True})) as response:
                for line in response.iter_lines():
                    if line.startswith("data:") and (event := end.note_data(line[5:].strip())) is not None:
                        yield event
        except httpx.TransportError as error:
            raise early from error
        if not end.is_whole:
            raise early

    def _send(self, method: str, path: str, *, stream: bool = False, **options: Any) -> httpx.Response:
        """Send a request until the server accepts or refuses it, `max_retries` times more at most."""
        import httpx

        if {".", ".."} & set(path.split("/")):  # a part that both sides would resolve: another address
            raise NotFoundError(f"there is nothing of this name at {self.url}: {path}")
        attempt = 0
        while True:
            attempt += 1
            wait, error = _BACKOFF.seconds(attempt), self._away()
            cause: httpx.TransportError | None = None
            try:
                place = path if "://" in path else quote(path)
                request = self._http.build_request(method, place, **options)
                response = self._http.send(request, stream=stream)
                if response.is_success:
                    return response
                response.read()
            except httpx.TransportError as failure:
                cause = failure
            else:
                error = self._refusal(response)
                wait = retry_after(response.headers.get("Retry-After"), time.time()) or wait
                if response.status_code < 500 and response.status_code not in _RETRIED:
                    raise error
            if attempt > self._max_retries or wait > _LONGEST_WAIT:
                raise error from cause
            time.sleep(wait)

    def _away(self) -> BatchyardError:
        return UnavailableError(f"no server answers at {self.url}: start one with `batchyard up`, or set BATCHYARD_URL")

    def _refusal(self, response: httpx.Response) -> BatchyardError:
        try:
            details = dict(response.json()["error"])
        except (ValueError, LookupError, TypeError):  # not in OpenAI's form: its message is the whole body
            details = {}
        text = details.get("message") or response.text.strip() or f"status {response.status_code}"
        message = without_code(str(text), details.get("code")).removesuffix(".")
        if response.status_code == 401:
            return AuthenticationError(f"{self.url}: {message}; set BATCHYARD_API_KEY to a key of that server")
        if response.status_code == 404:
            remedy = "" if details.get("code") == "model_not_found" else "; a key sees only what its own project has"
            return NotFoundError(f"{self.url}: {message}{remedy}")
        if response.status_code >= 500:
            return UnavailableError(f"{self.url} answered {response.status_code}: {message}")
        return RequestError(message, code=details.get("code"), param=details.get("param"))


@contextmanager
def uploaded(server: ApiClient, file_id: str, *, keep: bool = True) -> Iterator[str]:
    """Yield the id of a file for what the block makes of it. Delete it if that is refused, or without `keep`."""
    refused = False
    try:
        yield file_id
    except RequestError:
        refused = True
        raise
    finally:
        if refused or not keep:
            with suppress(BatchyardError):
                server.call("DELETE", f"/files/{file_id}")


def connect(data: Path, option: str = "--data", **settings: Any) -> ApiClient:
    """Return a client of the server at BATCHYARD_URL, or of the local stack on the folder `data`."""
    return ApiClient(*address(data, option), **settings)


def _http(url: str, key: str) -> httpx.Client:
    """Return a client that asks a server through the environment's proxy for it, if any.

    httpx would read the environment itself, and fail over proxies that this server is not asked through.
    """
    import httpx

    from batchyard import proxies

    proxy = proxies.proxy_of(url)
    try:
        return httpx.Client(
            base_url=f"{url}/v1",
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(600.0, connect=5.0),
            follow_redirects=True,
            proxy=proxy,
            verify=httpx.create_ssl_context() if url.startswith("https://") else False,  # reads SSL_CERT_FILE
            trust_env=False,
        )
    except ImportError as error:
        raise ConfigurationError(
            f"{url} is asked through the SOCKS proxy of your environment (ALL_PROXY or {url.partition(':')[0].upper()}"
            "_PROXY): install what speaks SOCKS with pip install 'httpx[socks]', or add the host to NO_PROXY"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"the proxy of your environment for {url} cannot be used: {error}") from error


def _path(name: str) -> str:
    return f"/{'jobs' if name.startswith('job_') else 'batches'}/{name}"


def _filled(query: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}
