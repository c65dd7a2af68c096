"""Validation reports every bad line, by its physical line number, and plans every good one."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Callable
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.models import ModelSpec
from batchyard.settings import Settings
from store import segments, speeds
from store.artifacts import Artifacts
from store.formats import chunks, plan
from store.formats.plan import PlanWriter
from store.records import Batch, File
from store.speeds import Measurement
from tasks.context import AppContext
from tasks.intake import validation
from tasks.intake.validation import ValidationReport, Validator
from tests.support.batches import create_batch
from tests.support.stacks import ROOT

SETTINGS = Settings()
CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
NANO = str(ROOT / "examples/models/nano")
MODELS = {
    "nano": ModelSpec(name="nano", engine="transformers", source=NANO, engine_args={"max_model_len": 64}),
    "echo": ModelSpec(name="echo", engine="echo"),
    "other": ModelSpec(name="other", engine="echo"),
    "vectors": ModelSpec(name="vectors", engine="echo", endpoints=("/v1/embeddings",)),
}


def a_request(custom_id: str = "a", **changes: Any) -> dict[str, Any]:
    body = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]} | changes.pop("body", {})
    body = {key: value for key, value in body.items() if value is not ...}
    line = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | changes
    return {key: value for key, value in line.items() if value is not ...}


def limited(max_requests: int = 1000, **limits: int) -> Settings:
    return SETTINGS.model_copy(update={"max_requests": max_requests, **limits})


def validate(
    source: bytes,
    artifacts: Artifacts,
    *,
    endpoint: str = CHAT,
    segment_requests: int = 100,
    max_requests: int = 100_000,
    max_inputs: int = 1000,
) -> tuple[ValidationReport, PlanWriter, str]:
    report = ValidationReport()
    with artifacts.create() as file:
        planned = PlanWriter(
            file, dict.fromkeys(MODELS, plan.SegmentSize(segment_requests, plan.SEGMENT_BYTES)), artifacts
        )
        settings = limited(max_requests, max_embedding_inputs=max_inputs)
        Validator(MODELS, endpoint, settings).run(io.BytesIO(source), planned, report)
        planned.discard() if report.count else planned.close()
    return report, planned, file.sha256


def errors_of(source: bytes, artifacts: Artifacts, **options: Any) -> list[tuple[str, int | None, str | None]]:
    report, _, _ = validate(source, artifacts, **options)
    return [(error["code"], error["line"], error["param"]) for error in report.errors]


def joined(*requests: bytes | dict[str, Any]) -> bytes:
    return b"\n".join(each if isinstance(each, bytes) else json.dumps(each).encode() for each in requests)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


BAD_LINES: list[tuple[str, bytes | dict[str, Any], str, str | None]] = [
    ("no JSON", b"{nope}", "invalid_json_line", None),
    ("cut JSON", b'{"custom_id": "a"', "invalid_json_line", None),
    ("an array", b"[1]", "invalid_json_line", None),
    ("a number", b"5", "invalid_json_line", None),
    ("NaN", json.dumps(a_request(body={"temperature": float("nan")})).encode(), "invalid_json_line", None),
    ("Infinity", json.dumps(a_request(body={"temperature": float("inf")})).encode(), "invalid_json_line", None),
    ("bytes that are not UTF-8", b'{"custom_id": "\xff"}', "invalid_json_line", None),
    ("a lone surrogate", b'{"custom_id": "\\ud800"}', "invalid_json_line", None),
    ("a NUL byte", b'{"custom_id": "\x00"}', "invalid_json_line", None),
    ("NUL bytes only", b"\x00" * 100, "invalid_json_line", None),
    ("10,000 levels", b"[" * 10_000, "invalid_json_line", None),
    ("10,000 levels of arrays", b"[" * 10_000 + b"]" * 10_000, "invalid_json_line", None),
    ("10,000 levels of objects", b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "invalid_json_line", None),
    ("300 levels", a_request(body={"metadata": {"a": nested(300)}}), "invalid_json_line", None),
    (
        "1000 levels under a key that repeats",
        b'{"a":%s1%s,"a":1}' % (b"[" * 1000, b"]" * 1000),
        "invalid_json_line",
        None,
    ),
    ("10 MB of garbage", b"\xfe\x07 garbage:" * 1_000_000, "invalid_json_line", None),
    ("10 MB of brackets", b"[" * 10_000_000, "invalid_json_line", None),
    ("an object after a byte order mark", b"\xef\xbb\xbf{}", "missing_required_parameter", "custom_id"),
    ("an integer of 5000 digits", b'{"custom_id": %s}' % (b"9" * 5000), "invalid_json_line", None),
    ("a float that is infinite", b'{"custom_id": 1e400}', "invalid_json_line", None),
    ("a repeated key", b'{"custom_id": "a", "custom_id": "b"}', "invalid_json_line", None),
    ("a repeated key, once escaped", b'{"a:b": "a", "a\\u003ab": "::"}', "invalid_json_line", None),
    ("a repeated key deep down", b'{"body": {"a": [{"x": {"": 1, "": 2}}]}}', "invalid_json_line", None),
    ("a repeated key and colons escaped", b'{"a": "\\u003a", "b": 1, "b": 2}', "invalid_json_line", None),
    ("a repeated key and a huge integer", b'{"a": ' + b"9" * 300 + b', "a": 2}', "invalid_json_line", None),
    ("requests parted by CR alone", b'{"custom_id": "x"}\r{"custom_id": "y"}', "invalid_json_line", None),
    ("no custom_id", a_request(custom_id=...), "missing_required_parameter", "custom_id"),
    ("no method", a_request(method=...), "missing_required_parameter", "method"),
    ("no url", a_request(url=...), "missing_required_parameter", "url"),
    ("no body", a_request() | {"body": None}, "missing_required_parameter", "body"),
    ("a custom_id that is a number", a_request(custom_id=5), "invalid_request", "custom_id"),
    ("another url", a_request(url="/v1/completions"), "invalid_url", "url"),
    ("a url that is no string", a_request(url={"a": 1}), "invalid_url", "url"),
    ("another method", a_request(method="GET"), "invalid_method", "method"),
    ("a body that is a list", a_request() | {"body": [1]}, "invalid_request", "body"),
    ("no model", a_request(body={"model": ...}), "invalid_request", "body.model"),
    ("a model that is a number", a_request(body={"model": 5}), "invalid_request", "body.model"),
    ("an unknown model", a_request(body={"model": "gpt-9"}), "model_not_found", "body.model"),
    ("a model of another endpoint", a_request(body={"model": "vectors"}), "unsupported_parameter", "url"),
    ("no messages", a_request(body={"messages": ...}), "invalid_request", "body.messages"),
    ("empty messages", a_request(body={"messages": []}), "invalid_request", "body.messages"),
    ("a message that is a string", a_request(body={"messages": ["hi"]}), "invalid_request", "body.messages[0]"),
    ("a temperature in words", a_request(body={"temperature": "hot"}), "invalid_request", "body.temperature"),
    (
        "a seed beyond 64 bits",
        a_request(body={"seed": 2**70}),
        "invalid_request",
        "body.seed",
    ),
    ("an unknown parameter", a_request(body={"wings": 2}), "unsupported_parameter", "body.wings"),
    ("streaming", a_request(body={"stream": True}), "streaming_unsupported", "body.stream"),
]


@pytest.mark.parametrize(
    ("line", "code", "param"), [case[1:] for case in BAD_LINES], ids=[case[0] for case in BAD_LINES]
)
def test_a_bad_line_is_one_error_and_its_neighbours_are_none(
    line: bytes | dict[str, Any], code: str, param: str | None, artifacts: Artifacts
) -> None:
    source = joined(a_request("before"), line, a_request("after"))
    assert errors_of(source, artifacts) == [(code, 2, param)]


WRONG = [None, 5, -1.5, 10**30, True, "", "x" * 500, [], [[]], {}, {"a": {"b": []}}]
FIELDS = ["custom_id", "method", "url", "body", "body.model", "body.messages", "body.messages[0]"] + [
    f"body.{name}"
    for name in ("temperature", "max_tokens", "stop", "n", "seed", "tools", "stream", "logit_bias", "user")
]


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_of_any_wrong_type_is_at_most_one_short_error(name: str, artifacts: Artifacts) -> None:
    count = 0
    for value in WRONG:
        request = a_request()
        if name == "body.messages[0]":
            request["body"]["messages"] = [value]
        elif name.startswith("body."):
            request["body"][name.removeprefix("body.")] = value
        else:
            request[name] = value
        report, _, _ = validate(joined(a_request("before"), request, a_request("after")), artifacts)
        assert len(report.errors) <= 1, value
        for error in report.errors:
            assert (error["line"], len(error["message"]) < 400) == (2, True)
            assert "x" * 101 not in error["message"]
        count += len(report.errors)
    assert count >= len(WRONG) / 2


def test_the_error_names_the_repeated_key(artifacts: Artifacts) -> None:
    report, _, _ = validate(b'{"custom_id": "a", "body": {"seed": 1, "seed": 2}}', artifacts)
    assert "'seed'" in report.errors[0]["message"]


def test_the_list_ends_with_how_many_errors_there_are_where_it_cannot_hold_all(artifacts: Artifacts) -> None:
    more = validation.MAX_ERRORS + 5
    report, _, _ = validate(b"nope\n" * more, artifacts)
    assert [error["line"] for error in report.errors] == [*range(1, validation.MAX_ERRORS + 1), None]
    assert report.errors[-1]["code"] == "too_many_errors"
    assert str(more) in report.errors[-1]["message"]
    report, _, _ = validate(b"nope\n" * validation.MAX_ERRORS, artifacts)
    assert len(report.errors) == validation.MAX_ERRORS


def test_the_first_errors_are_kept_whichever_kind_they_are(artifacts: Artifacts) -> None:
    source = joined(a_request("a"), a_request("a"), *[b"nope"] * validation.MAX_ERRORS)
    errors = errors_of(source, artifacts, max_requests=validation.MAX_ERRORS)
    assert [code for code, _, _ in errors[:3]] == ["too_many_tasks", "duplicate_custom_id", "invalid_json_line"]
    assert [line for _, line, _ in errors[-2:]] == [validation.MAX_ERRORS, None]


@pytest.mark.parametrize("unit", ["x", "\x00", "\U000e0001", "'\""])
def test_messages_stay_short_whatever_the_line_holds(unit: str, artifacts: Artifacts) -> None:
    long = unit * 100_000
    requests = [
        a_request("a", body={"model": long}),
        a_request("b", url=long),
        a_request("c", body={long: 1}),
        a_request("d", body={"messages": [{"role": long}]}),
        a_request(long),
        a_request(long),
        b'{"%s": 1, "%s": 2}' % (json.dumps(long)[1:-1].encode(), json.dumps(long)[1:-1].encode()),
    ]
    report, _, _ = validate(joined(*requests), artifacts)
    assert [error["line"] for error in report.errors] == [1, 2, 3, 4, 6, 7]
    assert max(len(error["message"]) for error in report.errors) < 400
    assert max(len(error["param"] or "") for error in report.errors) <= 100


def test_a_repeated_custom_id_is_reported_at_each_repeat(artifacts: Artifacts) -> None:
    source = joined(*(a_request(name) for name in ("a", "b", "a", "c", "a")))
    assert errors_of(source, artifacts) == [
        ("duplicate_custom_id", 3, "custom_id"),
        ("duplicate_custom_id", 5, "custom_id"),
    ]


def test_a_refused_line_claims_no_id_and_is_reported_once(artifacts: Artifacts) -> None:
    wrong = a_request("a", body={"model": "gpt-9"})
    assert errors_of(joined(wrong, a_request("a"), wrong, a_request("a")), artifacts) == [
        ("model_not_found", 1, "body.model"),
        ("model_not_found", 3, "body.model"),
        ("duplicate_custom_id", 4, "custom_id"),
    ]


def test_a_valid_line_runs_after_a_skipped_one_with_its_id(artifacts: Artifacts) -> None:
    report = ValidationReport()
    source = joined(a_request("a", body={"model": "gpt-9"}), a_request("a"), a_request("a"))
    assert Validator(MODELS, CHAT, limited(), skip_invalid=True).run(io.BytesIO(source), None, report)
    assert [(error["code"], error["line"]) for error in report.errors] == [
        ("model_not_found", 1),
        ("duplicate_custom_id", 3),
    ]


@pytest.mark.parametrize("source", [b"", b"\n\n", b" \r\n\t\n"])
def test_a_file_without_requests_is_empty(source: bytes, artifacts: Artifacts) -> None:
    assert errors_of(source, artifacts) == [("empty_file", None, None)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_the_byte_order_mark_of_another_encoding_is_named(encoding: str, artifacts: Artifacts) -> None:
    report, _, _ = validate(json.dumps(a_request()).encode(encoding), artifacts)
    assert [(error["code"], error["line"]) for error in report.errors] == [("invalid_json_line", 1)]
    assert f"the file is {encoding.upper()}; save it as UTF-8." in report.errors[0]["message"]


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"])
def test_the_byte_order_mark_of_utf_8_is_skipped_and_lines_keep_their_numbers(
    mark: bytes, artifacts: Artifacts
) -> None:
    file = mark + joined(a_request("a"), b"{nope}", a_request("b"), a_request("a"))
    first = 1 + mark.count(b"\n")
    assert errors_of(file, artifacts) == [
        ("invalid_json_line", first + 1, None),
        ("duplicate_custom_id", first + 3, "custom_id"),
    ]


def test_files_that_were_joined_with_their_byte_order_marks_are_valid(artifacts: Artifacts) -> None:
    mark = b"\xef\xbb\xbf"
    joined_files = mark + joined(a_request("a")) + b"\n" + mark + joined(a_request("b")) + b"\n" + mark
    assert errors_of(joined_files, artifacts) == []


def test_a_misspelt_parameter_is_refused_by_an_engine_and_else_a_warning(artifacts: Artifacts) -> None:
    theirs = ModelSpec(name="theirs", engine="openai", engine_args={"endpoints": [{"url": "http://127.0.0.1:1/v1"}]})
    hint = "did you mean 'temperature'?"
    for model, errors, warnings in (("echo", 2, 0), ("theirs", 0, 1)):
        report = ValidationReport()
        validator = Validator(MODELS | {"theirs": theirs}, CHAT, limited())
        lines = joined(*(a_request(name, body={"model": model, "tempreature": 0.5}) for name in "ab"))
        validator.run(io.BytesIO(lines), None, report)
        assert (len(report.errors), len(validator.warnings.entries)) == (errors, warnings)
        entries = report.errors or validator.warnings.entries
        assert (entries[0]["line"], entries[0]["param"]) == (1, "body.tempreature")
        assert entries[0]["message"].rstrip(".").endswith(hint)


def test_a_file_of_lines_that_end_in_cr_alone_is_told_so(artifacts: Artifacts) -> None:
    report, _, _ = validate(joined(a_request("a"), a_request("b")).replace(b"\n", b"\r"), artifacts)
    assert [error["line"] for error in report.errors] == [1]
    assert "carriage return" in report.errors[0]["message"]


def test_too_many_requests_are_one_error_of_the_file_and_its_lines_are_checked_all_the_same(
    artifacts: Artifacts,
) -> None:
    source = joined(*(a_request(str(number)) for number in range(5)))
    assert errors_of(source, artifacts, max_requests=5) == []
    assert errors_of(source, artifacts, max_requests=4) == [("too_many_tasks", None, None)]
    errors = errors_of(joined(source, b"nope"), artifacts, max_requests=4)
    assert errors == [("too_many_tasks", None, None), ("invalid_json_line", 6, None)]


def test_embedding_inputs_are_limited_over_the_whole_file(artifacts: Artifacts) -> None:
    inputs = ["one", ["two", "three"], [4, 4, 4], [[5], [6]]]
    source = joined(
        *(
            {
                "custom_id": str(number),
                "method": "POST",
                "url": EMBEDDINGS,
                "body": {"model": "vectors", "input": value},
            }
            for number, value in enumerate(inputs)
        )
    )
    assert errors_of(source, artifacts, endpoint=EMBEDDINGS, max_inputs=6) == []
    assert errors_of(source, artifacts, endpoint=EMBEDDINGS, max_inputs=5) == [("too_many_tasks", None, None)]


def test_a_line_longer_than_the_limit_is_one_error_with_a_code_of_its_own() -> None:
    long = json.dumps(a_request("long", body={"user": "x" * 5000})).encode()
    source = b"\n".join([json.dumps(a_request("a")).encode(), long, json.dumps(a_request("b")).encode()])
    for limit, errors in ((1000, [("line_too_long", 2)]), (len(long) + 1, [])):
        report = ValidationReport()
        Validator(MODELS, CHAT, limited(max_line_bytes=limit)).run(io.BytesIO(source), None, report)
        assert [(error["code"], error["line"]) for error in report.errors] == errors


def test_blank_lines_are_skipped_but_counted_and_crlf_is_fine(artifacts: Artifacts) -> None:
    source = b"\r\n\n" + json.dumps(a_request("a")).encode() + b"\r\n\r\n" + json.dumps(a_request("b")).encode()
    report, _, sha256 = validate(source, artifacts)
    assert not report.errors
    with artifacts.open(sha256) as file:
        assert pq.read_table(file)["line"].to_pylist() == [3, 5]


def test_a_request_too_long_for_its_model_is_answered_in_the_plan_already(artifacts: Artifacts) -> None:
    def nano(custom_id: str, content: str) -> dict[str, Any]:
        return a_request(custom_id, body={"model": "nano", "messages": [{"role": "user", "content": content}]})

    source = joined(nano("a", "word " * 500), nano("b", "fits"), a_request("c"), nano("d", "word " * 500))
    report, planned, sha256 = validate(source, artifacts)
    assert report.errors == []
    ((number, chunk),) = planned.refused.items()
    assert sorted((one.model, one.requests) for one in planned.segments) == [
        ("echo", 1),
        ("nano", 1),
        ("nano", 2),
    ]
    assert plan.segment(artifacts, sha256, number)["line"].to_pylist() == [1, 4]
    with artifacts.open(chunk) as file:
        answers = pq.read_table(file)
    assert answers.schema.equals(chunks.SCHEMA)
    assert (answers["line"].to_pylist(), answers["ok"].to_pylist()) == ([1, 4], [False, False])
    first = json.loads(answers["answer"][0].as_py())
    assert set(first) == {"id", "custom_id", "response", "error"}
    assert (first["custom_id"], first["error"], first["response"]["status_code"]) == ("a", None, 400)
    assert first["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_a_request_with_remote_media_is_one_error_line_and_the_others_run(artifacts: Artifacts) -> None:
    image = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
    remote = a_request("a", body={"messages": [{"role": "user", "content": [image]}]})
    report, planned, _ = validate(joined(remote, a_request("b")), artifacts)
    assert report.errors == []
    assert [(one.model, one.requests) for one in planned.segments] == [("echo", 1), ("echo", 1)]
    (chunk,) = planned.refused.values()
    with artifacts.open(chunk) as file:
        answer = json.loads(pq.read_table(file)["answer"][0].as_py())
    assert (answer["custom_id"], answer["response"]["status_code"]) == ("a", 400)
    assert answer["response"]["body"]["error"]["code"] == "media_not_allowed"


def test_refused_requests_are_cut_into_segments_too(artifacts: Artifacts) -> None:
    body = {"model": "nano", "max_tokens": 65}
    _, planned, _ = validate(joined(*(a_request(str(n), body=body) for n in range(5))), artifacts, segment_requests=2)
    assert [(one.model, one.requests) for one in planned.segments] == [
        ("nano", 2),
        ("nano", 2),
        ("nano", 1),
    ]
    assert len(set(planned.refused.values())) == 3


SMALL = {case[0]: case[1:3] for case in BAD_LINES if len(case[1]) < 100_000}


@given(kinds=st.lists(st.sampled_from(["good", "blank", *SMALL]), min_size=1, max_size=40), cap=st.integers(1, 40))
def test_every_bad_line_is_reported_exactly_once_up_to_the_cap_and_no_good_one(
    artifacts: Artifacts, kinds: list[str], cap: int
) -> None:
    source, expected = [], []
    for number, kind in enumerate(kinds, 1):
        line, code = SMALL.get(kind, (b"" if kind == "blank" else a_request(), None))
        if isinstance(line, dict) and isinstance(line.get("custom_id"), str):
            line = line | {"custom_id": f"{kind}-{number}"}
        source.append(line)
        expected += [(code, number)] if code else []
    if set(kinds) == {"blank"}:
        expected = [("empty_file", None)]
    if len(expected) > cap:
        expected = [*expected[:cap], ("too_many_errors", None)]
    with mock.patch.object(validation, "MAX_ERRORS", cap):
        report, _, _ = validate(joined(*source), artifacts)
        assert [(error["code"], error["line"]) for error in report.errors] == expected
        assert all(len(error["message"]) < 400 for error in report.errors)


def test_a_segment_of_huge_requests_ends_early(artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SEGMENT_BYTES", 1000)
    long = joined(*(a_request(f"{number}" * 600) for number in range(4)))
    assert [segment.requests for segment in validate(long, artifacts)[1].segments] == [2, 2]


@given(
    chosen=st.lists(st.tuples(st.sampled_from(["echo", "other"]), st.text(max_size=5), st.booleans()), max_size=60),
    segment_requests=st.integers(1, 7),
)
def test_the_plan_holds_every_request_once_in_segments_of_one_model(
    tmp_path_factory: pytest.TempPathFactory, chosen: list[tuple[str, str, bool]], segment_requests: int
) -> None:
    artifacts = Artifacts(f"file://{tmp_path_factory.mktemp('artifacts')}")
    source, expected = [], {}
    for number, (model, text, blank) in enumerate(chosen):
        if blank:
            source.append("")
        request = a_request(f"{number}-{text}", body={"model": model})
        source.append(json.dumps(request))
        expected[len(source)] = request
    report, planned, sha256 = validate("\n".join(source).encode(), artifacts, segment_requests=segment_requests)
    if not chosen:
        assert [error["code"] for error in report.errors] == ["empty_file"]
        return
    assert not report.errors
    planned_rows = {}
    with artifacts.open(sha256) as file:
        parquet = pq.ParquetFile(file)
        assert parquet.num_row_groups == len(planned.segments)
        for number, segment in enumerate(planned.segments):
            rows = parquet.read_row_group(number).to_pylist()
            assert len(rows) == segment.requests <= segment_requests
            for row in rows:
                body = json.loads(row["body"])
                assert body["model"] == segment.model
                planned_rows[row["line"]] = (row["custom_id"], body)
    assert planned_rows == {line: (request["custom_id"], request["body"]) for line, request in expected.items()}


def test_segments_take_half_a_minute_once_the_models_speed_is_known_well(context: AppContext) -> None:
    key = ("echo", context.models["echo"].config_sha256, "decode")

    def size_after(chunks: int) -> int:
        with context.database.write() as session:
            for _ in range(chunks):
                speeds.measure(
                    speeds.locked(session, *key),
                    Measurement(seconds=1.0, requests=100, bytes=1e4, tokens=900, squares=0.0, in_flight=256),
                )
        return validation.segment_sizes(context)["echo"].requests

    assert size_after(0) == size_after(3) == 2000, "the first parts have the engine's start in them"
    assert size_after(50) == 3000


def test_a_pattern_that_a_step_cannot_use_is_an_error_of_its_line() -> None:
    source = joined(*(a_request(text, body={"metadata": {"expected": text}}) for text in ("a+", "(?=a)")))
    report = ValidationReport()
    Validator(MODELS, CHAT, limited(), post_process=[{"step": "score", "method": "regex"}]).run(
        io.BytesIO(source), None, report
    )
    assert [(error["line"], error["param"]) for error in report.errors] == [(2, "body.metadata.expected")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            json.dumps(a_request(body={"messages": [{"role": "user", "content": float("nan")}]})),
            "The line has NaN at 'body.messages[0].content'. NaN is not JSON; write null or leave it out.",
        ),
        (json.dumps(a_request(custom_id=float("-inf"))), "The line has -Infinity at 'custom_id'."),
        ('{"a": NaN', "The line is not valid JSON"),
        ("NaN", "The line has NaN at ''."),
    ],
)
def test_a_number_that_json_has_not_is_named_with_its_place(line: str, message: str, artifacts: Artifacts) -> None:
    report, _, _ = validate(joined(a_request("before"), line.encode()), artifacts)
    (error,) = report.errors
    assert (error["code"], error["line"], error["param"]) == ("invalid_json_line", 2, None)
    assert error["message"].startswith(message)


def test_invalid_lines_that_are_skipped_are_refused_in_the_plan_and_the_others_run(artifacts: Artifacts) -> None:
    source = joined(
        *(case[1] for case in BAD_LINES),
        a_request("good"),
        a_request("good"),
        json.dumps(a_request("nan", body={"temperature": float("nan")})).encode(),
        a_request("other", body={"model": "other"}),
    )
    report = ValidationReport()
    with artifacts.create() as file:
        planned = PlanWriter(file, dict.fromkeys(MODELS, plan.SegmentSize(10, plan.SEGMENT_BYTES)), artifacts)
        validator = Validator(MODELS, CHAT, limited(), skip_invalid=True)
        assert validator.run(io.BytesIO(source), planned, report)
        planned.close()
    assert {segment.model for segment in planned.segments} == {"echo", "other"}
    tables = [table for sha256 in planned.refused.values() for table in chunks.read(artifacts, sha256)]
    answers = {entry["line"]: json.loads(entry["answer"]) for table in tables for entry in table.to_pylist()}
    assert len(answers) == report.count == len(BAD_LINES) + 2
    for error in report.errors:
        answer = answers[error["line"]]
        assert answer["error"] == error
        assert (answer["response"], answer["id"]) == (None, f"batch_req_{error['line']:024x}")
    last = len(BAD_LINES) + 3
    assert [answers[line]["custom_id"] for line in (last - 1, last)] == ["good", "nan"]
    assert answers[last - 1]["error"]["code"] == "duplicate_custom_id"
    assert answers[1]["custom_id"] is None


@pytest.mark.parametrize(
    ("source", "max_requests"),
    [(joined(b"{nope}", {"a": 1}), 10), (b"", 10), (joined(b"{nope}", a_request("a"), a_request("b")), 2)],
    ids=["only invalid lines", "no line", "too many lines"],
)
def test_a_file_of_which_nothing_can_run_fails_also_where_invalid_lines_are_skipped(
    source: bytes, max_requests: int
) -> None:
    report = ValidationReport()
    assert not Validator(MODELS, CHAT, limited(max_requests), skip_invalid=True).run(io.BytesIO(source), None, report)
    assert report.errors


def test_a_batch_counts_its_skipped_lines_as_failed_before_anything_runs(
    context: AppContext, upload: Callable[[bytes], File]
) -> None:
    source = joined(a_request("a"), b"{nope}", a_request("c"), {"custom_id": "d"})
    file = upload(source)
    with context.database.write() as session:
        batch, failing = create_batch(session, file, on_invalid="skip"), create_batch(session, file)
    for each in (batch, failing):
        assert validation.run(context, each.id, "here/1/task")
    with context.database.read() as session:
        batch, failing = session.get_one(Batch, batch.id), session.get_one(Batch, failing.id)
        records, more = segments.page(session, batch.id, after=None, limit=1)
        (last,), _ = segments.page(session, batch.id, after=records[0].number, limit=1)
    assert (batch.status, batch.total, batch.failed, batch.model, batch.errors) == ("in_progress", 4, 2, "echo", None)
    assert (failing.status, [error["line"] for error in failing.errors or []]) == ("failed", [2, 4])
    assert more
    assert sorted((record.state, record.requests) for record in (*records, last)) == [("done", 2), ("pending", 2)]


@pytest.mark.long
def test_many_invalid_lines_are_planned_in_little_memory(artifacts: Artifacts) -> None:
    good, bad = json.dumps(a_request("%d")).encode(), b'{"custom_id": "%d", "body": NaN}'

    def plan_lines(lines: int) -> tuple[int, int]:
        """Return the number of errors, and of chunks with refused requests."""
        source = io.BytesIO(b"\n".join((bad if number % 2 else good) % number for number in range(lines)))
        report = ValidationReport()
        with artifacts.create() as file:
            planned = PlanWriter(file, dict.fromkeys(MODELS, plan.SegmentSize(2000, plan.SEGMENT_BYTES)), artifacts)
            Validator(MODELS, CHAT, limited(10**6), skip_invalid=True).run(source, planned, report)
            planned.close()
        return report.count, len(planned.refused)

    plan_lines(2)  # what is imported meanwhile takes 20 MiB
    tracemalloc.start()
    counts = plan_lines(8000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert counts == (4000, 2)
    assert most < 3.5 * 2**20, "the lines themselves take 0.7 of them"
