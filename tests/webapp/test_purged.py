"""A batch that was deleted for its age is not there, and neither are its files, whoever has kept their ids."""

from __future__ import annotations

import json
import time

from flask.testing import FlaskClient

from store import batches
from tasks.context import AppContext
from tasks.finishing import garbage
from tests.support.stacks import a_chat
from tests.support.webapps import upload


def ended_batch(context: AppContext, client: FlaskClient) -> tuple[str, str]:
    """Return the ids of a batch that has ended, and of its output."""
    file_id = upload(client, json.dumps(a_chat("a", "b")).encode()).get_json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch_id = client.post("/v1/batches", json=body).get_json()["id"]
    with context.database.write() as session:
        batches.reject(session, batch_id, [])
        batch = session.get_one(batches.Batch, batch_id)
        output = batches.add_artifact(session, batch, "output.jsonl", context.artifacts.put(b"{}"), 2, 1)
    return batch_id, output.id


def test_routes_of_a_purged_batch_and_of_its_files_answer_404(context: AppContext, client: FlaskClient) -> None:
    batch_id, output_id = ended_batch(context, client)
    rules = [rule for rule in client.application.url_map.iter_rules() if rule.arguments & {"batch_id", "file_id"}]
    urls = [
        url
        for rule in rules
        if "GET" in (rule.methods or ()) and rule.rule.startswith("/v1/")
        for url in [rule.rule.replace("<batch_id>", batch_id).replace("<file_id>", output_id)]
    ]
    assert {f"/v1/batches/{batch_id}", f"/v1/files/{output_id}", f"/v1/files/{output_id}/content"} <= set(urls)
    assert client.get(f"/v1/batches/{batch_id}").status_code == 200
    assert client.get(f"/v1/files/{output_id}").status_code == 200
    garbage.purge(context, time.time() + 91 * 86400)
    assert {url: client.get(url).status_code for url in urls} == dict.fromkeys(urls, 404)
    assert client.post(f"/v1/batches/{batch_id}/cancel").status_code == 404
    assert client.post(f"/v1/batches/{batch_id}/retry").status_code == 404
    assert client.get("/v1/batches").get_json()["data"] == []


def test_a_cursor_is_good_until_its_record_is_purged(context: AppContext, client: FlaskClient) -> None:
    batch_id, output_id = ended_batch(context, client)
    client.delete(f"/v1/files/{output_id}")
    pages = {"/v1/batches": batch_id, "/v1/files": output_id}
    assert [client.get(url, query_string={"after": id_}).status_code for url, id_ in pages.items()] == [200, 200]
    garbage.purge(context, time.time() + 91 * 86400)
    for url, id_ in pages.items():
        answer = client.get(url, query_string={"after": id_})
        assert (answer.status_code, answer.get_json()["error"]["param"]) == (400, "after")
