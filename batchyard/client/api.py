"""The API client: Batchyard's own routes and OpenAI's, with Batchyard's errors.

Not the `openai` package, whose import takes a second: a command would take longer to start than to run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import httpx

from batchyard import proxies
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

TIMEOUT = httpx.Timeout(600.0, connect=5.0)
_RETRIED = (408, 429)
"""Statuses after which the same request may succeed, beside those from 500 on."""
_BACKOFF = Backoff(first=0.5, longest=8.0, jitter=(0.75, 1.0))
_LONGEST_WAIT = 120.0
"""Seconds that a server may ask to wait for; one that asks for more is not asked again."""


class ApiClient:
    """A client of one server, with one key.

    Every call raises UnavailableError if the server cannot be reached or fails, and RequestError if it refuses.

    Attributes:
        stays: False for a server that ends with the command that has started it.

    Raises:
        ConfigurationError: the environment names a proxy for this server that cannot be used.
    """

    def __init__(self, url: str, key: str, *, max_retries: int = 2) -> None:
        self.url = url.rstrip("/")
        self.stays = True
        self._max_retries = max_retries
        self._http = _http(self.url, key)

    def upload(self, file: Path, purpose: Literal["batch", "user_data"] = "batch") -> str:
        """Upload a file, streamed, and return its id."""
        with file.open("rb") as stream:
            answer = self._send("POST", "/files", data={"purpose": purpose}, files={"file": (file.name, stream)})
        return str(answer.json()["id"])

    def delete_file(self, file_id: str) -> None:
        self._call("DELETE", f"/files/{file_id}")

    def create(
        self,
        file_id: str,
        *,
        endpoint: str,
        window: str = "24h",
        metadata: Mapping[str, str] | None = None,
        post_process: Iterable[Mapping[str, str]] = (),
        on_invalid: str = "fail",
        priority: str = "normal",
    ) -> dict[str, Any]:
        """Create a batch and return it as the server's JSON object."""
        body: dict[str, Any] = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}
        body |= {"metadata": dict(metadata)} if metadata else {}
        steps = [dict(step) for step in post_process]
        body |= {"post_process": steps} if steps else {}
        body |= {"on_invalid": on_invalid} if on_invalid != "fail" else {}
        body |= {"priority": priority} if priority != "normal" else {}
        return self._call("POST", "/batches", body)

    def create_of_url(self, url: str, **fields: Any) -> dict[str, Any]:
        """Create a batch of the objects at a URL of a bucket that the server may read, and return it.

        Args:
            fields: of the body of POST /v1/batches.
        """
        return self._call("POST", "/batches", {"input_url": url, **fields})

    def import_files(self, url: str, purpose: str = "batch", *, join: bool = False) -> list[dict[str, Any]]:
        """Make files of the objects at a URL of a bucket, one of each or one of all, and return them."""
        return list(self._call("POST", "/imports", {"url": url, "purpose": purpose, "join": join})["data"])

    def start(self, file: Path, form: Mapping[str, str], *, dry_run: bool = False) -> dict[str, Any]:
        """Create a batch of prompts or of compressed requests; `form` is that of POST /start.

        Return the answer, which has `batch_id`. A dry run creates none, and returns what it would be.
        """
        query = {"dry_run": "true"} if dry_run else {}
        with file.open("rb") as stream:
            files = {"file": (file.name, stream)}
            answer = self._send("POST", f"{self.url}/start", params=query, data=dict(form), files=files)
        document: dict[str, Any] = answer.json()
        return document

    def batch(self, batch_id: str) -> dict[str, Any]:
        return self._call("GET", f"/batches/{batch_id}")

    def cancel(self, batch_id: str) -> dict[str, Any]:
        return self._call("POST", f"/batches/{batch_id}/cancel")

    def retry(
        self, batch_id: str, errors: Literal["all", "passing"] = "all", fixed_file_id: str | None = None
    ) -> dict[str, Any]:
        """Create a batch of the requests without an answer, and return it.

        Args:
            errors: "passing" leaves out those that would fail again.
            fixed_file_id: a file of corrected requests.
        """
        body = ({} if errors == "all" else {"errors": errors}) | (
            {"fixed_file_id": fixed_file_id} if fixed_file_id else {}
        )
        return self._call("POST", f"/batches/{batch_id}/retry", body)

    def control(self, name: str, verb: Literal["pause", "resume"]) -> dict[str, Any]:
        """Pause or resume a batch or a job, and return it."""
        kind = "jobs" if name.startswith("job_") else "batches"
        return self._call("POST", f"/{kind}/{name}/{verb}")

    def delete(self, name: str) -> None:
        """Delete a batch or a job that has ended, with all that it had."""
        self._call("DELETE", f"/{'jobs' if name.startswith('job_') else 'batches'}/{name}")

    def change(self, batch_id: str, values: Mapping[str, str | None]) -> dict[str, Any]:
        """Change a batch's deadline, priority, name or description, and return it."""
        return self._call("POST", f"/batches/{batch_id}", values)

    def audit(self) -> Iterator[dict[str, Any]]:
        """Yield what clients have done, newest first."""
        return self._list("/audit")

    def usage(self, **query: str | None) -> dict[str, Any]:
        """Return what was used in a month. `query`: `month`, `by`, `project`."""
        return self._call("GET", "/usage", None, **_filled(query))

    def usage_csv(self, **query: str | None) -> str:
        """Return what was used in a month as csv."""
        return self._send("GET", "/usage.csv", params=_filled(query)).text

    def results(self, batch_id: str, after: int) -> bytes:
        """Return the output lines so far, in the order of their answers, without the first `after`."""
        return self._lines(f"/batches/{batch_id}/results", after)

    def _lines(self, path: str, after: int) -> bytes:
        return self._send("GET", path, params={"after": after}).content

    def batches(self, **query: str | None) -> Iterator[dict[str, Any]]:
        """Yield the batches of the key's project, newest first, fetched page by page. `query`: `status`."""
        return self._list("/batches", **query)

    def events(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a batch or a job, oldest first."""
        kind = "jobs" if name.startswith("job_") else "batches"
        return self._list(f"/{kind}/{name}/events")

    def segments(self, batch_id: str) -> Iterator[dict[str, Any]]:
        """Yield the segments of a batch, by number."""
        return self._list(f"/batches/{batch_id}/segments")

    def files(self, purpose: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the files of the key's project, newest first."""
        return self._list("/files", purpose=purpose)

    def find_file(self, file_id: str) -> dict[str, Any] | None:
        """Return a file, None if it was deleted or has expired."""
        try:
            return self._call("GET", f"/files/{file_id}")
        except NotFoundError:
            return None

    def queue(self) -> dict[str, Any]:
        """Return what waits and what runs."""
        return self._call("GET", "/queue")

    def page(self, name: str | None = None) -> str:
        """Return the address of the page of a batch or a job, or of the page of what runs."""
        kind = "jobs" if name is not None and name.startswith("job_") else "batches"
        return f"{self.url}/" + ("" if name is None else quote(f"{kind}/{name}"))

    def models(self, *, engines: bool = False) -> list[dict[str, Any]]:
        return list(self._call("GET", "/models", None, **({"engines": "true"} if engines else {}))["data"])

    def knows_too_late(self, model: str) -> bool:
        """True if the server's models.toml names a model that was not there when the server started."""
        try:
            self._call("GET", f"/models/{model}")
        except NotFoundError as error:
            return NEWER in error.message
        return False

    def recipes(self) -> list[dict[str, Any]]:
        """Return the recipes with the JSON schemas of their options."""
        return list(self._call("GET", "/recipes")["data"])

    def create_job(self, *, dry_run: bool = False, **body: Any) -> dict[str, Any]:
        """Create a job from the body's fields and return it; a dry run returns its outlook."""
        return self._call("POST", "/jobs", body, **({"dry_run": "true"} if dry_run else {}))

    def job(self, job_id: str) -> dict[str, Any]:
        return self._call("GET", f"/jobs/{job_id}")

    def jobs(self, **query: str | None) -> Iterator[dict[str, Any]]:
        """Yield the jobs of the key's project, newest first. `query`: `status`, `recipe`, `parent_id`."""
        return self._list("/jobs", **query)

    def job_items(self, job_id: str, **query: str | None) -> Iterator[dict[str, Any]]:
        """Yield the items of a job by number. `query`: `state`, `custom_id`."""
        return self._list(f"/jobs/{job_id}/items", **query)

    def reply_to_item(self, job_id: str, number: int, body: Mapping[str, Any]) -> dict[str, Any]:
        """Reply to an item of a job with one of `text`, `verdict`, `requeue`, and return the item."""
        return self._call("POST", f"/jobs/{job_id}/items/{number}", body)

    def job_results(self, job_id: str, after: int) -> bytes:
        """Return the lines of the items that have ended so far, in that order, without the first `after`."""
        return self._lines(f"/jobs/{job_id}/results", after)

    def job_events(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a job."""
        return self._list(f"/jobs/{job_id}/events")

    def cancel_job(self, job_id: str) -> dict[str, Any]:
        return self._call("POST", f"/jobs/{job_id}/cancel")

    def rescore_job(self, job_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Judge the answers of an ended job anew, and return the new job."""
        return self._call("POST", f"/jobs/{job_id}/rescore", {"options": dict(options)})

    def retry_job(self, job_id: str, **body: Any) -> dict[str, Any]:
        """Create a job of the items of an ended one that did not complete, and return it."""
        return self._call("POST", f"/jobs/{job_id}/retry", body)

    def create_key(self, **body: Any) -> dict[str, Any]:
        """Create an API key from the body's fields, and return it with its secret."""
        return self._call("POST", "/keys", body)

    def keys(self, project: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the keys of a project (its name) or of all, newest first."""
        return self._list("/keys", project=project)

    def revoke_key(self, key_id: str) -> dict[str, Any]:
        return self._call("DELETE", f"/keys/{key_id}")

    def projects(self) -> Iterator[dict[str, Any]]:
        """Yield the projects, newest first."""
        return self._list("/projects")

    def project_id(self, name: str) -> str:
        """Return the id of a project. Raises NotFoundError."""
        for project in self.projects():
            if project["name"] == name:
                return str(project["id"])
        raise NotFoundError(f"{self.url} has no project '{name}'; 'batchyard project list' shows those it has")

    def change_project(self, project_id: str, values: Mapping[str, str | int | None]) -> dict[str, Any]:
        """Change a project's tier, limits and retention, and return it."""
        return self._call("POST", f"/projects/{project_id}", values)

    def erase_project(self, project_id: str) -> dict[str, Any]:
        return self._call("DELETE", f"/projects/{project_id}")

    def budget(
        self, project_id: str, terms: Mapping[str, Any] | None = None, *, remove: bool = False
    ) -> dict[str, Any] | None:
        """Set or remove a project's budget of a month, and return it; None if it has none."""
        path = f"/projects/{project_id}/budget"
        if remove:
            self._call("DELETE", path)
            return None
        if terms is not None:
            return self._call("POST", path, {**terms, "amount": str(terms["amount"])})
        try:
            return self._call("GET", path)
        except NotFoundError:
            return None

    def create_webhook(self, url: str, event_types: Iterable[str] = (), name: str | None = None) -> dict[str, Any]:
        """Create a webhook endpoint and return it with its signing secret.

        By default it receives all event types and is named after its host.
        """
        host = url.partition("://")[2].partition("/")[0]
        types = list(event_types) or self._call("GET", "/webhook_event_types")["data"]
        body = {"url": url, "event_types": types, "name": name or (host or url)[:128]}
        return self._call("POST", "/webhook_endpoints", body)

    def webhooks(self) -> list[dict[str, Any]]:
        return list(self._list("/webhook_endpoints"))

    def delete_webhook(self, webhook_id: str) -> dict[str, Any]:
        return self._call("DELETE", f"/webhook_endpoints/{webhook_id}")

    def deliveries(self, webhook_id: str, limit: int) -> list[dict[str, Any]]:
        """Return the deliveries to a webhook, sent and waiting, newest first."""
        return list(self._call("GET", f"/webhook_endpoints/{webhook_id}/deliveries", limit=limit)["data"])

    def redeliver(self, webhook_id: str, delivery_id: str) -> dict[str, Any]:
        path = f"/webhook_endpoints/{webhook_id}/deliveries/{delivery_id}/redeliver"
        return self._call("POST", path)

    def create_schedule(self, **body: Any) -> dict[str, Any]:
        """Create a schedule from the fields of the request's body, and return it."""
        return self._call("POST", "/schedules", body)

    def schedules(self) -> Iterator[dict[str, Any]]:
        """Yield all schedules of the key's project, newest first."""
        return self._list("/schedules")

    def schedule(self, schedule_id: str) -> dict[str, Any]:
        return self._call("GET", f"/schedules/{schedule_id}")

    def pause_schedule(self, schedule_id: str) -> dict[str, Any]:
        return self._call("POST", f"/schedules/{schedule_id}/pause")

    def resume_schedule(self, schedule_id: str) -> dict[str, Any]:
        return self._call("POST", f"/schedules/{schedule_id}/resume")

    def run_schedule(self, schedule_id: str) -> dict[str, Any]:
        """Run a schedule now and return the run."""
        return self._call("POST", f"/schedules/{schedule_id}/run")

    def schedule_runs(self, schedule_id: str) -> Iterator[dict[str, Any]]:
        """Yield all runs of a schedule, newest first."""
        return self._list(f"/schedules/{schedule_id}/runs")

    def delete_schedule(self, schedule_id: str) -> dict[str, Any]:
        return self._call("DELETE", f"/schedules/{schedule_id}")

    def _list(self, path: str, **filters: str | None) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list, fetched page by page. A filter that is None is left out."""
        query: dict[str, Any] = {"limit": 100, **{name: value for name, value in filters.items() if value is not None}}
        while True:
            page = self._call("GET", path, **query)
            yield from page["data"]
            if not page["has_more"]:
                return
            query["after"] = page["last_id"]

    def chunks(self, file_id: str) -> Iterator[bytes]:
        """Yield a file's content in pieces."""
        response = self._send("GET", f"/files/{file_id}/content", stream=True)
        try:
            yield from response.iter_bytes(1 << 20)
        except httpx.TransportError as error:
            raise self._away() from error
        finally:
            response.close()

    def lines(self, file_id: str) -> Iterator[bytes]:
        """Yield a file's lines, without line feeds."""
        rest = b""
        for chunk in self.chunks(file_id):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from whole
        if rest:
            yield rest

    def content(self, file_id: str) -> bytes:
        """Return a small file's content, in memory."""
        return b"".join(self.chunks(file_id))

    def download(self, file_id: str, to: Path) -> None:
        """Stream a file's content to `to`, which appears whole or not at all. Raises OSError."""
        with output_files.written(to) as part, part.open("wb") as stream:
            stream.writelines(self.chunks(file_id))

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Send a live request that is streamed, and yield the data of its events.

        Closing the iterator ends the request.

        Raises:
            BatchyardError: an error in the stream, or it ends early; the answer is not whole.
        """
        from batchyard.endpoints.stream_end import StreamEnd  # most commands read no stream

        end = StreamEnd(body)
        response = self._send("POST", path, stream=True, json={**body, "stream": True})
        try:
            for line in response.iter_lines():
                if line.startswith("data:") and (event := end.note_data(line[5:].strip())) is not None:
                    yield event
        except httpx.TransportError as error:
            raise UnavailableError(f"{self.url} has closed the connection before the answer was whole") from error
        finally:
            response.close()
        if not end.is_whole:
            raise UnavailableError(f"{self.url} has closed the connection before the answer was whole")

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> dict[str, Any]:
        """Send a request with a JSON body, and return the JSON object that the server answers with."""
        document: dict[str, Any] = self._send(method, path, json=body, params=query).json()
        return document

    def _send(self, method: str, path: str, *, stream: bool = False, **options: Any) -> httpx.Response:
        """Send a request until the server accepts or refuses it, `max_retries` times more at most.

        Args:
            stream: do not read the body.
            options: those of httpx.Client.build_request.
        """
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
        """Return the error of an answer that is no success."""
        details = _error(response)
        message = details["message"]
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
                server.delete_file(file_id)


def connect(data: Path, option: str = "--data", **settings: Any) -> ApiClient:
    """Return a client of the server at BATCHYARD_URL, or of the local stack on the folder `data`.

    Args:
        option: what names the folder, for messages.
        settings: those of ApiClient.

    Raises:
        ConfigurationError: there is no key to send.
    """
    return ApiClient(*address(data, option), **settings)


def _http(url: str, key: str) -> httpx.Client:
    """Return a client that asks a server through the environment's proxy for it, if any.

    httpx would read the environment itself, and fail over proxies that this server is not asked through.
    """
    proxy = proxies.proxy_of(url)
    try:
        return httpx.Client(
            base_url=f"{url}/v1",
            headers={"Authorization": f"Bearer {key}"},
            timeout=TIMEOUT,
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


def _filled(query: Mapping[str, str | None]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


def _error(response: httpx.Response) -> dict[str, Any]:
    """Return an error in OpenAI's form; its message is the whole body of any other answer."""
    try:
        error = dict(response.json()["error"])
    except (ValueError, LookupError, TypeError):
        error = {}
    message = error.get("message") or response.text.strip() or f"status {response.status_code}"
    return {**error, "message": without_code(str(message), error.get("code")).removesuffix(".")}
