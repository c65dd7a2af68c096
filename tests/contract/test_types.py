"""Our objects against the types of the installed `openai` and `anthropic` packages, and the OpenAPI document."""

from __future__ import annotations

import re
import types
import typing
from typing import Any, Literal

import anthropic.types
import anthropic.types.messages as anthropics
import httpx
import openai.pagination
import openai.types
import openai.types.uploads
import pytest
from openai.types import batch_usage
from openai.types import webhooks as their_webhooks
from pydantic import BaseModel

from webapp.anthropic.wire import MessageBatch, MessageBatchDeleted, MessageBatchRequestCounts, MessageError
from webapp.wire.batches import BatchObject, RequestCounts
from webapp.wire.files import FileDeleted, FileObject, UploadObject, UploadPartObject
from webapp.wire.lists import ListPage
from webapp.wire.models import ModelObject
from webapp.wire.webhooks import EventTypes, NewSecret, SampleSent, WebhookDeleted, WebhookObject, WebhookPage
from webapp.wire.work import BatchError, BatchErrors, InputTokensDetails, OutputTokensDetails, Usage

PAIRS = [
    (openai.types.Batch, BatchObject),
    (openai.types.batch.Errors, BatchErrors),
    (openai.types.BatchError, BatchError),
    (openai.types.BatchRequestCounts, RequestCounts),
    (openai.types.BatchUsage, Usage),
    (batch_usage.InputTokensDetails, InputTokensDetails),
    (batch_usage.OutputTokensDetails, OutputTokensDetails),
    (openai.types.FileObject, FileObject),
    (openai.types.FileDeleted, FileDeleted),
    (openai.types.Upload, UploadObject),
    (openai.types.uploads.UploadPart, UploadPartObject),
    (openai.types.Model, ModelObject),
    (their_webhooks.WebhookEndpoint, WebhookObject),
    (their_webhooks.WebhookEndpointWithSecret, NewSecret),
    (their_webhooks.WebhookEndpointList, WebhookPage),
    (their_webhooks.DeletedWebhookEndpoint, WebhookDeleted),
    (their_webhooks.WebhookEndpointTestResult, SampleSent),
    (their_webhooks.WebhookEventTypeList, EventTypes),
    (anthropics.MessageBatch, MessageBatch),
    (anthropics.MessageBatchRequestCounts, MessageBatchRequestCounts),
    (anthropics.DeletedMessageBatch, MessageBatchDeleted),
    (anthropic.types.ErrorResponse, MessageError),
]
OURS = {"batchyard", "parent"}


@pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=lambda model: model.__name__)
def test_an_object_has_the_fields_of_the_clients_type(theirs: type[BaseModel], ours: type[BaseModel]) -> None:
    assert set(ours.model_fields) - OURS == set(theirs.model_fields)


@pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=lambda model: model.__name__)
def test_a_field_holds_what_the_clients_type_expects(theirs: type[BaseModel], ours: type[BaseModel]) -> None:
    for name, field in theirs.model_fields.items():
        kinds, expected = _kinds(ours.model_fields[name].annotation), _kinds(field.annotation)
        assert kinds <= expected, f"{theirs.__name__}.{name}: {kinds} is not within {expected}"


def _kinds(annotation: Any) -> set[Any]:
    """Return the types that an annotation allows: literals by their type, every model as `object`."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return set().union(*(_kinds(part) for part in typing.get_args(annotation)))
    if origin is Literal:
        return {type(value) for value in typing.get_args(annotation)}
    if origin is not None:
        return {origin}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {"object"}
    return {annotation}


def test_a_page_has_the_fields_of_the_clients_page() -> None:
    assert set(openai.pagination.SyncCursorPage.model_fields) <= set(ListPage.model_fields)


def test_the_document_names_every_route_of_the_contract(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    routes = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert {
        ("POST", "/v1/files"),
        ("GET", "/v1/files"),
        ("GET", "/v1/files/{file_id}"),
        ("DELETE", "/v1/files/{file_id}"),
        ("GET", "/v1/files/{file_id}/content"),
        ("POST", "/v1/uploads"),
        ("POST", "/v1/uploads/{upload_id}/parts"),
        ("POST", "/v1/uploads/{upload_id}/complete"),
        ("POST", "/v1/uploads/{upload_id}/cancel"),
        ("POST", "/v1/batches"),
        ("GET", "/v1/batches"),
        ("GET", "/v1/batches/{batch_id}"),
        ("POST", "/v1/batches/{batch_id}/cancel"),
        ("POST", "/v1/messages/batches"),
        ("GET", "/v1/messages/batches"),
        ("GET", "/v1/messages/batches/{message_batch_id}"),
        ("DELETE", "/v1/messages/batches/{message_batch_id}"),
        ("POST", "/v1/messages/batches/{message_batch_id}/cancel"),
        ("GET", "/v1/messages/batches/{message_batch_id}/results"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/{name}"),
        ("POST", "/start"),
        ("GET", "/healthz"),
        ("GET", "/readyz"),
    } <= routes
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"] and operation["responses"], f"{method} {path}"


def test_the_document_can_be_browsed_without_another_server(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.status_code == 200
    assert not re.search(r"https?://|(src|href)=.?//", page.text)
    assert '<header class="way-back"><a href="/">' in page.text
    for name in ("swagger_bundle.js", "swagger_style.css"):
        assert name in page.text
        assert http.get(f"/docs/{name}").status_code == 200
    assert http.get("/docs/url.json").status_code == 404


def test_the_statuses_are_the_clients() -> None:
    for theirs, ours in (
        (openai.types.Batch, BatchObject),
        (openai.types.FileObject, FileObject),
        (openai.types.Upload, UploadObject),
    ):
        statuses = typing.get_args(ours.model_fields["status"].annotation)
        assert set(statuses) <= set(typing.get_args(theirs.model_fields["status"].annotation))
