"""What a batch would cost is estimated from what the project's latest batches of the same models have used."""

from __future__ import annotations

import io
import json
import re
from fractions import Fraction
from typing import Any

import pytest
from flask.testing import FlaskClient

from batchyard.cli import job_view, view
from batchyard.models import Tariff
from store import keys
from store.records import Project
from tasks.context import AppContext
from tests.support.spending import MILLION, spend
from tests.support.webapps import client_of, upload
from tests.webapp.pages.conftest import csrf_of, signed_in
from webapp import create_app


@pytest.fixture
def project(context: AppContext, client: FlaskClient) -> str:
    """The id of the client's project."""
    with context.database.read() as session:
        return session.query(Project).filter_by(name="default").one().id


def priced(context: AppContext) -> None:
    """Give the model a tariff: a euro for a million tokens of prompts, ten for those of answers."""
    tariff = Tariff.model_validate({"currency": "EUR", "input": 1, "output": 10})
    context.models["echo"] = context.models["echo"].model_copy(update={"price": tariff})


def dry_run(client: FlaskClient, prompts: int, **options: Any) -> Any:
    body = {"model": "echo", "prompts": ["x" * 400] * prompts, **options}
    return client.post("/start?dry_run=true", json=body).get_json()["cost"]


def test_an_estimate_says_that_nobody_knows_before_the_first_batch(context: AppContext, client: FlaskClient) -> None:
    assert dry_run(client, 2) is None, "no tariff"
    priced(context)
    assert dry_run(client, 2) == {"currency": "EUR", "amount": None, "least": None, "most": None, "batches": 0}


def test_an_estimate_is_what_the_latest_batches_used_with_their_range(
    context: AppContext, client: FlaskClient, project: str
) -> None:
    priced(context)
    other = client_of(context, project="other")
    for output in (100, 200, 600):
        used = {"requests": 10, "bytes": 5000, "input_tokens": 1000, "output_tokens": output}
        spend(context.database, project, 1, **used)
    found = dry_run(client, 100)
    # A body of about 500 bytes has about 100 tokens; an answer 10, 20 or 60, so 30 on average.
    assert found["batches"] == 3
    amount, least, most = (float(found[name]) for name in ("amount", "least", "most"))
    assert 100 * (90 + 300) < amount * MILLION < 100 * (120 + 300)
    assert 100 * (90 + 100) < least * MILLION < 100 * (120 + 100)
    assert 100 * (90 + 600) < most * MILLION < 100 * (120 + 600)
    limited = dry_run(client, 100, max_tokens=5)
    assert float(limited["most"]) * MILLION < 100 * (120 + 50), "no answer is longer than its limit"
    assert dry_run(other, 100)["amount"] is None, "what other projects used is not told"


def test_one_batch_says_little(context: AppContext, client: FlaskClient, project: str) -> None:
    priced(context)
    spend(context.database, project, 1, output_tokens=100)
    found = dry_run(client, 10)
    assert Fraction(found["least"]) * 2 <= Fraction(found["amount"]) <= Fraction(found["most"]) / 2
    assert found["batches"] == 1


def job_dry_run(client: FlaskClient, recipe: str = "rollout", **options: Any) -> Any:
    items = [{"custom_id": f"row-{number}", "prompt": "x" * 400, "answer": "x"} for number in range(10)]
    common = {"sampling": {"temperature": 1}, "ground_truth": "answer", "reward": "exact"}
    body = {"recipe": recipe, "input": {"items": items}, "options": {**common, **options}}
    return client.post("/v1/jobs?dry_run=true", json=body).get_json()


def test_a_job_costs_what_the_requests_of_its_stages_do(context: AppContext, client: FlaskClient, project: str) -> None:
    assert job_dry_run(client, model="echo")["cost"] is None, "no tariff"
    priced(context)
    assert job_dry_run(client, model="echo")["cost"]["amount"] is None, "nothing was measured"
    spend(context.database, project, 1, requests=10, bytes=5000, input_tokens=1000, output_tokens=300)
    once, four = (float(job_dry_run(client, model="echo", n=n)["cost"]["amount"]) for n in (1, 4))
    assert 10 * (80 + 300) < once * MILLION < 10 * (140 + 300)
    assert four == pytest.approx(4 * once, rel=0.05)
    short = {"temperature": 1, "max_tokens": 5}
    assert float(job_dry_run(client, model="echo", sampling=short)["cost"]["amount"]) < once


def test_an_experiment_costs_what_all_its_jobs_do(context: AppContext, client: FlaskClient, project: str) -> None:
    priced(context)
    spend(context.database, project, 1, requests=10, bytes=5000, input_tokens=1000, output_tokens=300)
    once = float(job_dry_run(client, model="echo")["cost"]["amount"])
    common = {"model": "echo", "ground_truth": "answer", "reward": "exact"}
    values = {"options": common, "variants": {"one": {"n": 1}, "three": {"n": 3}}, "repeats": 2}
    body = {"recipe": "experiment", "options": {"recipe": "rollout", **values}}
    body["input"] = {"items": [{"prompt": "x" * 400, "answer": "x"} for _ in range(10)]}
    outlook = client.post("/v1/jobs?dry_run=true", json=body).get_json()
    assert float(outlook["cost"]["amount"]) == pytest.approx(2 * (1 + 3) * once, rel=0.01)
    assert outlook["requests"][0]["body"]["model"] == "echo"


def test_a_dry_run_of_a_job_shows_the_first_requests_and_the_errors_of_the_first_rows(client: FlaskClient) -> None:
    outlook = job_dry_run(client, model="echo", n=2, system="Be brief.")
    assert [request["stage"] for request in outlook["requests"]] == ["sample", "sample"]
    assert outlook["requests"][0]["body"]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "x" * 400},
    ]
    assert outlook["errors"] is None
    body = {"recipe": "rollout", "options": {"model": "echo"}, "input": {"items": [{"text": "no prompt"}]}}
    refused = client.post("/v1/jobs?dry_run=true", json=body).get_json()
    assert [(error["line"], error["code"]) for error in refused["errors"]["data"]] == [(1, "missing_prompt")]
    assert refused["requests"] == []
    assert "no column 'messages' or 'prompt'" in job_view.outlook(refused)


def test_the_terminal_and_the_form_show_it(context: AppContext, client: FlaskClient, project: str) -> None:
    priced(context)
    body = {"model": "echo", "prompts": ["hello"]}
    assert "at a cost that nobody knows" in view.outlook(client.post("/start?dry_run=true", json=body).get_json())
    with context.database.write() as session:
        key = keys.create(session, "default").key
    visitor = signed_in(create_app(context).test_client(), key)

    def preview() -> str:
        fields = {"csrf": csrf_of(visitor), "endpoint": "/v1/chat/completions", "model": "echo", "text": "hello"}
        return visitor.post("/new/preview", data=fields, headers={"HX-Request": "true"}).text

    assert "this project has not run a batch with that model" in preview()
    spend(context.database, project, 1, requests=1, bytes=1, input_tokens=2_000, output_tokens=100_000)
    assert "about 1." in view.outlook(client.post("/start?dry_run=true", json=body).get_json())
    assert re.search(r"about 1\.\d\d EUR .*from 1 batch", preview())


def test_a_parameter_that_is_most_likely_misspelt_is_warned_of(client: FlaskClient) -> None:
    body = {"model": "echo", "messages": [{"role": "user", "content": "a"}], "tempreature": 0.5, "top_of_mind": 1}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    warning = (
        "/v1/chat/completions has no parameter 'tempreature', so an engine may ignore it; did you mean 'temperature'?"
    )
    for path in ("/start", "/start?dry_run=true"):
        form = {"file": (io.BytesIO(json.dumps(line).encode()), "in.jsonl")}
        answer = client.post(path, data=form, content_type="multipart/form-data").get_json()
        assert answer["warnings"] == [warning]
    assert client.post("/start", json={"model": "echo", "prompts": ["a"]}).get_json()["warnings"] == []
    file_id = upload(client, b"\n" + json.dumps(line).encode()).get_json()["id"]
    create = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = client.post("/v1/batches", json=create).get_json()
    told = {"code": "misspelt_parameter", "line": 2, "message": warning, "param": "body.tempreature"}
    assert batch["batchyard"]["warnings"] == [told]
    assert client.get(f"/v1/batches/{batch['id']}").get_json()["batchyard"]["warnings"] == [told]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/batches", {"input_file_id": "file-none", "completion_window": "24h"}),
        ("/start", {"model": "echo", "prompts": ["a"]}),
        ("/start?dry_run=true", {"model": "echo", "prompts": ["a"]}),
    ],
)
def test_an_endpoint_that_no_model_serves_is_refused_before_anything_is_read(
    path: str, body: dict[str, Any], client: FlaskClient
) -> None:
    refused = client.post(path, json=body | {"endpoint": "/v1/embeddings"})
    error = refused.get_json()["error"]
    assert (refused.status_code, error["param"]) == (400, "endpoint")
    served = "Supported values: '/v1/chat/completions', '/v1/completions', '/v1/responses', "
    assert error["message"].startswith(f"Invalid endpoint: /v1/embeddings. {served}")
