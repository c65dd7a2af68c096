"""Recipe refine over /v1/jobs without a worker: what it says of itself, and what of its options is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient

from batchyard.models import ModelSpec
from jobs import messages, validation
from tasks.context import AppContext
from tests.support.stacks import ROOT
from tests.support.webapps import client_of, context_in

ROW = {"prompt": "What is 37 + 58?", "answer": "95"}


@pytest.fixture(scope="module")
def context(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppContext]:
    """A context that all tests here share: most of them make nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "validate", lambda *_: None)
        context = context_in(tmp_path_factory.mktemp("refine"), redis_url=broker)
        real = ModelSpec(name="real", engine="transformers", source=str(ROOT / "examples/models/nano"))
        yield dataclasses.replace(context, models=context.models | {"real": real})


@pytest.fixture(scope="module")
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


def post(client: FlaskClient, items: list[Any] | None = None, **options: Any) -> dict[str, Any]:
    body = {"recipe": "refine", "input": {"items": items or [ROW]}, "options": {"tiers": ["echo"], **options}}
    answer: dict[str, Any] = client.post("/v1/jobs", json=body).get_json()
    return answer


def test_refine_is_listed_with_its_gates_and_tells_what_it_takes(client: FlaskClient) -> None:
    listed = client.get("/v1/recipes").get_json()
    recipe = {recipe["name"]: recipe for recipe in listed["data"]}["refine"]
    assert (recipe["stages"], recipe["judgement"], recipe["main"]) == (["answer"], [], "done.jsonl")
    gates = {gate["name"] for gate in listed["gates"]}
    assert gates >= {"finish-reason", "not-latency", "external", "not-levenshtein", "contains-json"}


def test_options_written_as_texts_are_kept_as_objects(client: FlaskClient) -> None:
    job = post(
        client,
        gates=["contains-any:a,b", "external:ci"],
        reviewer="echo",
        votes={"models": ["echo"], "extract": "boxed"},
    )
    kept = job["batchyard"]["options"]
    assert kept["tiers"] == [{"model": "echo", "budget": None, "sampling": None}]
    assert kept["gates"][0] == {"gate": "contains-any", "value": "a,b", "category": None}
    assert kept["gates"][1]["gate"] == "external"


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"gates": ["containz:x"]}, "options.gates.0.gate", "Did you mean 'contains'?"),
        ({"gates": ["is-json", "regex:("]}, "options.gates.1.gate", "is no regular expression of RE2: missing ): (."),
        ({"gates": ["latency:500"]}, "options.gates.0.gate", "Gate 'latency' needs a time with its unit"),
        ({"gates": ["external"]}, "options.gates.0.gate", "needs the name of what gives the verdict"),
        ({"tiers": ["echo", "eco"]}, "options.tiers.1.model", "Did you mean 'echo'?"),
        ({"reviewer": "eco"}, "options.reviewer.model", "Did you mean 'echo'?"),
        ({"votes": {"models": ["eco"], "extract": "boxed"}}, "options.votes.models.0", "Did you mean 'echo'?"),
        ({"votes": {"models": ["echo"], "extract": "boxd"}}, "options.votes.extract", "Did you mean 'boxed'?"),
        ({"policy": {"budgt": 1}}, "options.policy.budgt", "Did you mean 'options.policy.budget'?"),
        ({"gates": [{"gate": "is-json", "weight": 1}]}, "options.gates.0.weight", "Unknown parameter"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(
    client: FlaskClient, options: dict[str, Any], param: str, says: str
) -> None:
    error = post(client, **options)["error"]
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize(
    ("kind", "value"), [("json", {"type": "object"}), ("regex", "a+"), ("choice", ["a"]), ("grammar", 'root ::= "a"')]
)
def test_an_engine_that_cannot_hold_answers_to_a_form_is_refused(client: FlaskClient, kind: str, value: Any) -> None:
    error = post(client, tiers=["real"], structure={kind: value})["error"]
    assert (error["param"], error["code"]) == (f"options.structure.{kind}", "unsupported_parameter")
    assert f"The engine 'transformers' of model 'real' has no structured output by '{kind}'." in error["message"]


def test_a_row_without_the_column_of_a_gate_is_named_before_anything_runs(
    client: FlaskClient, context: AppContext
) -> None:
    job = post(client, [ROW, {"prompt": "?", "anwser": "95"}], gates=["equals:{{answer}}"])
    assert validation.run(context, job["id"], "here/1/task")
    (error,) = client.get(f"/v1/jobs/{job['id']}").get_json()["errors"]["data"]
    assert (error["code"], error["line"]) == ("missing_column", 2)
    assert "did you mean 'anwser'?" in error["message"]
