"""The metrics of the web app itself: each request is timed by its route, and scrapes need no broker."""

from __future__ import annotations

from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from webapp import prometheus


def samples(client: FlaskClient, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by its labels."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        tuple(sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


def test_a_request_is_timed_by_method_route_and_status(client: FlaskClient) -> None:
    for batch_id in ("batch_1", "batch_2"):
        assert client.get(f"/v1/batches/{batch_id}").status_code == 404
    timed = samples(client, "batchyard_http_request_seconds_count")
    assert timed["GET", "/v1/batches/<batch_id>", "404"] == 2


def test_what_clients_write_into_a_url_becomes_no_label(client: FlaskClient) -> None:
    client.get("/v1/nothing/of/the/kind")
    client.open("/v1/batches", method="BREW")
    labels = {label for labels in samples(client, "batchyard_http_request_seconds_count") for label in labels}
    assert "none" in labels and not any("kind" in label or label == "BREW" for label in labels)


def test_a_deployment_whose_broker_is_away_is_still_measured(client: FlaskClient) -> None:
    assert samples(client, "batchyard_batches")["validating",] == 0
    assert samples(client, "batchyard_engine_deaths_total") == {("echo",): 0.0}
    assert samples(client, "batchyard_messages") == {}, "nobody knows what waits in the broker"


def test_buckets_of_a_histogram_hold_all_that_is_below_their_bound() -> None:
    buckets = prometheus._buckets((0.5, 1.0), {"0": 2, "1": 3, "2": 1})
    assert buckets == [("0.5", 2), ("1.0", 5), ("+Inf", 6)]
