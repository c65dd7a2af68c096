"""The API client of the terminal commands: the `openai` package, with Batchyard's errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import openai

from batchyard.client.address import address
from batchyard.errors import AuthenticationError, NotFoundError, RequestError, UnavailableError


class Client:
    """A client of one server, with one key.

    Every call raises UnavailableError if the server cannot be reached or fails, and RequestError if it refuses.
    """

    def __init__(self, url: str, key: str, **options: Any) -> None:
        """`options`: those of openai.OpenAI, such as `timeout` and `max_retries`."""
        self.url = url.rstrip("/")
        self._api = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, **options)

    def upload(self, file: Path, purpose: Literal["batch", "user_data"] = "batch") -> str:
        """Upload a file, streamed, and return its id."""
        with self._errors(), file.open("rb") as stream:
            return self._api.files.create(file=(file.name, stream), purpose=purpose).id

    def create(
        self,
        file_id: str,
        *,
        endpoint: str,
        window: str = "24h",
        metadata: Mapping[str, str] | None = None,
        post_process: Iterable[Mapping[str, str]] = (),
        on_invalid: str = "fail",
    ) -> dict[str, Any]:
        """Create a batch and return it as the server's JSON object."""
        steps = [dict(step) for step in post_process]
        own: dict[str, Any] = {"post_process": steps} if steps else {}
        own |= {"on_invalid": on_invalid} if on_invalid != "fail" else {}
        with self._errors():
            batch = self._api.batches.create(
                input_file_id=file_id,
                endpoint=cast(Any, endpoint),
                completion_window=cast(Any, window),
                metadata=dict(metadata) if metadata else openai.omit,
                extra_body=own or None,
            )
        return batch.to_dict()

    def start(self, file: Path, form: Mapping[str, str], *, dry_run: bool = False) -> dict[str, Any]:
        """Create a batch of a file of prompts, or of requests that are compressed; `form` as POST /start has it.

        Return the batch. A dry run creates none, and returns what it would be.
        """
        query = {"dry_run": "true"} if dry_run else {}
        options = cast(Any, {"params": query, "headers": {"Content-Type": "multipart/form-data"}})
        with self._errors(), file.open("rb") as stream:
            answer = self._api.post(
                f"{self.url}/start",
                cast_to=object,
                body=dict(form),
                files=[("file", (file.name, stream))],
                options=options,
            )
        document = cast(dict[str, Any], answer)
        return document if dry_run else self.batch(document["batch_id"])

    def batch(self, batch_id: str) -> dict[str, Any]:
        with self._errors():
            return self._api.batches.retrieve(batch_id).to_dict()

    def cancel(self, batch_id: str) -> dict[str, Any]:
        with self._errors():
            return self._api.batches.cancel(batch_id).to_dict()

    def retry(self, batch_id: str) -> dict[str, Any]:
        """Create a batch of the requests without an answer, and return it."""
        with self._errors():
            return self._api.post(f"/batches/{batch_id}/retry", cast_to=openai.types.Batch, body={}).to_dict()

    def results(self, batch_id: str, after: int) -> bytes:
        """Return the output lines so far, in the order of their answers, without the first `after`."""
        return self._lines(f"/batches/{batch_id}/results", after)

    def _lines(self, path: str, after: int) -> bytes:
        query, lines = cast(Any, {"params": {"after": after}}), openai.HttpxBinaryResponseContent
        with self._errors():
            return self._api.get(path, cast_to=lines, options=query).content

    def batches(self, **query: str | None) -> Iterator[dict[str, Any]]:
        """Yield the batches of the key's project, newest first, fetched page by page. `query`: `status`."""
        return self._list("/batches", **query)

    def events(self, batch_id: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a batch."""
        return self._list(f"/batches/{batch_id}/events")

    def segments(self, batch_id: str) -> Iterator[dict[str, Any]]:
        """Yield the segments of a batch, by number."""
        return self._list(f"/batches/{batch_id}/segments")

    def files(self, purpose: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the files of the key's project, newest first."""
        return self._list("/files", purpose=purpose)

    def find_file(self, file_id: str) -> dict[str, Any] | None:
        """Return a file, None if it was deleted or has expired."""
        try:
            with self._errors():
                return cast(dict[str, Any], self._api.get(f"/files/{file_id}", cast_to=object))
        except NotFoundError:
            return None

    def queue(self) -> dict[str, Any]:
        """Return what waits and what runs."""
        with self._errors():
            return cast(dict[str, Any], self._api.get("/queue", cast_to=object))

    def page(self, name: str | None = None) -> str:
        """Return the address of the page of a batch or a job, or of the page of what runs."""
        kind = "jobs" if name is not None and name.startswith("job_") else "batches"
        return f"{self.url}/" + ("" if name is None else f"{kind}/{name}")

    def models(self) -> list[dict[str, Any]]:
        with self._errors():
            return [model.to_dict() for model in self._api.models.list()]

    def recipes(self) -> list[dict[str, Any]]:
        """Return the recipes with the JSON schemas of their options."""
        with self._errors():
            return list(cast(dict[str, Any], self._api.get("/recipes", cast_to=object))["data"])

    def create_job(self, *, dry_run: bool = False, **body: Any) -> dict[str, Any]:
        """Create a job from the fields of the request's body, and return it. A dry run returns what it would be."""
        query = cast(Any, {"params": {"dry_run": "true"}} if dry_run else {})
        with self._errors():
            return cast(dict[str, Any], self._api.post("/jobs", cast_to=object, body=body, options=query))

    def job(self, job_id: str) -> dict[str, Any]:
        with self._errors():
            return cast(dict[str, Any], self._api.get(f"/jobs/{job_id}", cast_to=object))

    def jobs(self, **query: str | None) -> Iterator[dict[str, Any]]:
        """Yield the jobs of the key's project, newest first. `query`: `status`, `recipe`, `parent_id`."""
        return self._list("/jobs", **query)

    def job_items(self, job_id: str, **query: str | None) -> Iterator[dict[str, Any]]:
        """Yield the items of a job by number. `query`: `state`, `custom_id`."""
        return self._list(f"/jobs/{job_id}/items", **query)

    def job_results(self, job_id: str, after: int) -> bytes:
        """Return the lines of the items that have ended so far, in that order, without the first `after`."""
        return self._lines(f"/jobs/{job_id}/results", after)

    def job_events(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a job."""
        return self._list(f"/jobs/{job_id}/events")

    def cancel_job(self, job_id: str) -> dict[str, Any]:
        with self._errors():
            return cast(dict[str, Any], self._api.post(f"/jobs/{job_id}/cancel", cast_to=object))

    def rescore_job(self, job_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Judge the answers of an ended job anew, and return the new job."""
        body = {"options": dict(options)}
        with self._errors():
            return cast(dict[str, Any], self._api.post(f"/jobs/{job_id}/rescore", cast_to=object, body=body))

    def retry_job(self, job_id: str, **body: Any) -> dict[str, Any]:
        """Create a job of the items of an ended one that did not complete, and return it."""
        with self._errors():
            return cast(dict[str, Any], self._api.post(f"/jobs/{job_id}/retry", cast_to=object, body=body))

    def create_webhook(self, url: str, event_types: Iterable[str] = (), name: str | None = None) -> dict[str, Any]:
        """Create a webhook endpoint and return it with its signing secret.

        By default it receives all event types and is named after its host.
        """
        host = url.partition("://")[2].partition("/")[0]
        with self._errors():
            types = list(event_types) or self._api.webhooks.event_types.list().data
            webhook = self._api.webhooks.create(url=url, event_types=cast(Any, types), name=name or (host or url)[:128])
        return webhook.to_dict()

    def webhooks(self) -> list[dict[str, Any]]:
        with self._errors():
            return [webhook.to_dict() for webhook in self._api.webhooks.list()]

    def delete_webhook(self, webhook_id: str) -> dict[str, Any]:
        with self._errors():
            return self._api.webhooks.delete(webhook_id).to_dict()

    def deliveries(self, webhook_id: str, limit: int) -> list[dict[str, Any]]:
        """Return the deliveries to a webhook, sent and waiting, newest first."""
        path = f"/webhook_endpoints/{webhook_id}/deliveries?limit={limit}"
        with self._errors():
            return list(cast(dict[str, Any], self._api.get(path, cast_to=object))["data"])

    def redeliver(self, webhook_id: str, delivery_id: str) -> dict[str, Any]:
        path = f"/webhook_endpoints/{webhook_id}/deliveries/{delivery_id}/redeliver"
        with self._errors():
            return cast(dict[str, Any], self._api.post(path, cast_to=object))

    def create_schedule(self, **body: Any) -> dict[str, Any]:
        """Create a schedule from the fields of the request's body, and return it."""
        with self._errors():
            return cast(dict[str, Any], self._api.post("/schedules", cast_to=object, body=body))

    def schedules(self) -> Iterator[dict[str, Any]]:
        """Yield all schedules of the key's project, newest first."""
        return self._list("/schedules")

    def schedule(self, schedule_id: str) -> dict[str, Any]:
        with self._errors():
            return cast(dict[str, Any], self._api.get(f"/schedules/{schedule_id}", cast_to=object))

    def pause_schedule(self, schedule_id: str) -> dict[str, Any]:
        with self._errors():
            return cast(dict[str, Any], self._api.post(f"/schedules/{schedule_id}/pause", cast_to=object))

    def resume_schedule(self, schedule_id: str) -> dict[str, Any]:
        with self._errors():
            return cast(dict[str, Any], self._api.post(f"/schedules/{schedule_id}/resume", cast_to=object))

    def run_schedule(self, schedule_id: str) -> dict[str, Any]:
        """Run a schedule now and return the run."""
        with self._errors():
            return cast(dict[str, Any], self._api.post(f"/schedules/{schedule_id}/run", cast_to=object))

    def schedule_runs(self, schedule_id: str) -> Iterator[dict[str, Any]]:
        """Yield all runs of a schedule, newest first."""
        return self._list(f"/schedules/{schedule_id}/runs")

    def delete_schedule(self, schedule_id: str) -> dict[str, Any]:
        with self._errors():
            return cast(dict[str, Any], self._api.delete(f"/schedules/{schedule_id}", cast_to=object))

    def _list(self, path: str, **filters: str | None) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list, fetched page by page. A filter that is None is left out."""
        query: dict[str, Any] = {"limit": 100, **{name: value for name, value in filters.items() if value is not None}}
        while True:
            with self._errors():
                page = cast(Any, self._api.get(path, cast_to=object, options={"params": query}))
            yield from page["data"]
            if not page["has_more"]:
                return
            query["after"] = page["last_id"]

    def chunks(self, file_id: str) -> Iterator[bytes]:
        """Yield a file's content in pieces."""
        with self._errors(), self._api.files.with_streaming_response.content(file_id) as response:
            yield from response.iter_bytes(1 << 20)

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
        """Stream a file's content to `to`, which appears whole or not at all."""
        part = to.with_name(to.name + ".part")
        with part.open("wb") as stream:
            for chunk in self.chunks(file_id):
                stream.write(chunk)
        part.replace(to)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate the errors of the `openai` package into ours."""
        try:
            yield
        except openai.APIConnectionError as error:
            raise UnavailableError(
                f"no server answers at {self.url}: start one with `batchyard up`, or set BATCHYARD_URL"
            ) from error
        except openai.AuthenticationError as error:
            raise AuthenticationError(
                f"{self.url}: {_message(error)}; set BATCHYARD_API_KEY to a key of that server"
            ) from error
        except openai.NotFoundError as error:
            raise NotFoundError(f"{self.url}: {_message(error)}; a key sees only what its own project has") from error
        except openai.InternalServerError as error:
            raise UnavailableError(f"{self.url} answered {error.status_code}: {_message(error)}") from error
        except openai.APIStatusError as error:
            raise RequestError(_message(error)) from error


def connect(data: Path, **settings: Any) -> Client:
    """Return a client of the server at BATCHYARD_URL, or of the local stack on the folder `data`.

    Args:
        settings: those of Client.

    Raises:
        ConfigurationError: there is no key to send.
    """
    return Client(*address(data), **settings)


def _message(error: openai.APIStatusError) -> str:
    body = error.body
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        return str(body["message"]).removesuffix(".")
    return error.message.removesuffix(".")
