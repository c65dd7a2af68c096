"""Signatures of manifests, by plain calls of `cryptography` and by the standards' own words."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from batchyard import signatures
from batchyard.errors import ConfigurationError
from tests.support.stacks import RunningStack
from tests.support.terminal import Result, batchyard

MANIFEST = json.dumps(
    {
        "batch_id": "batch_ä",
        "input": {"sha256": "a" * 64},
        "outputs": [{"name": "output.jsonl", "sha256": "b" * 64, "bytes": 3, "lines": 1}],
    }
).encode()


def new_key(folder: Path) -> Path:
    file = folder / "signing.key"
    file.write_text(signatures.new_key_file([]))
    return file


def test_an_envelope_is_dsse_of_an_in_toto_statement_and_holds_by_plain_ed25519(tmp_path: Path) -> None:
    file = new_key(tmp_path)
    envelope = json.loads(signatures.signed(file, MANIFEST)[signatures.ENVELOPE])
    assert envelope.keys() == {"payload", "payloadType", "signatures"}
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    payload = base64.b64decode(envelope["payload"], validate=True)
    (signature,) = envelope["signatures"]
    (shown,) = signatures.shown(file)
    assert signature["keyid"] == shown["key_id"]
    key: Any = load_pem_public_key(shown["public_key"].encode())
    signed = b"DSSEv1 28 application/vnd.in-toto+json " + str(len(payload)).encode() + b" " + payload
    key.verify(base64.b64decode(signature["sig"]), signed)
    with pytest.raises(InvalidSignature):
        key.verify(base64.b64decode(signature["sig"]), signed + b" ")
    assert json.loads(payload) == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": "input", "digest": {"sha256": "a" * 64}},
            {"name": "output.jsonl", "digest": {"sha256": "b" * 64}},
            {"name": "manifest.json", "digest": {"sha256": hashlib.sha256(MANIFEST).hexdigest()}},
        ],
        "predicateType": "urn:batchyard:manifest:v1",
        "predicate": json.loads(MANIFEST),
    }


def test_a_wrong_signature_another_key_and_another_manifest_are_told_apart(tmp_path: Path) -> None:
    file = new_key(tmp_path)
    content = signatures.signed(file, MANIFEST)[signatures.ENVELOPE]
    keys, others = signatures.read(file), signatures.public_keys(signatures.new_key_file([]))
    assert signatures.problem(content, MANIFEST, [*others, *keys]) is None
    envelope = json.loads(content)

    def changed(**members: Any) -> str | None:
        return signatures.problem(json.dumps(envelope | members).encode(), MANIFEST, keys)

    payload = base64.b64encode(base64.b64decode(envelope["payload"]).replace(b"bbb", b"ccc", 1)).decode()
    for members in ({"payload": payload}, {"payloadType": "application/json"}):
        assert changed(**members) == "the signature is wrong: the envelope was changed"
    assert "is signed by key -, and" in str(changed(signatures=[]))
    assert "cannot be read as a DSSE envelope" in str(changed(signatures=None))
    assert "cannot be read as a DSSE envelope" in str(signatures.problem(b"{", MANIFEST, keys))
    assert "and the public key given is" in str(signatures.problem(content, MANIFEST, others))
    assert signatures.problem(content, MANIFEST + b" ", keys) == "was signed for another manifest"


def test_a_key_file_that_cannot_be_used_is_refused_and_signs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = {signatures.MANIFEST: MANIFEST}
    assert (signatures.read(tmp_path / "none"), signatures.signed(tmp_path / "none", MANIFEST)) == ([], alone)
    file = tmp_path / "signing.key"
    public = signatures.pem(signatures.read(new_key(tmp_path))[0])
    for text in ("", public, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=r"signing key .* cannot be read"):
            signatures.read(file)
        caplog.clear()
        written = signatures.signed(file, MANIFEST)
        assert "manifest not signed" in caplog.text
        document = json.loads(written.pop(signatures.MANIFEST))
        assert "the signing key cannot be used" in document.pop("unsigned")
        assert (written, document) == ({}, json.loads(MANIFEST))


def test_a_key_is_created_once_and_a_rotated_one_still_verifies(stack: RunningStack, tmp_path: Path) -> None:
    def key(*arguments: str, **environment: str) -> Result:
        file = str(tmp_path / "signing.key")
        folder = ("--data", str(stack.data)) if not environment else ()
        set_to = environment or {"BATCHYARD_SIGNING_KEY_FILE": file}
        return batchyard("key", "signing", *arguments, *folder, folder=tmp_path, **set_to)

    assert "has no signing key" in key("rotate").stderr
    created = key("create")
    assert created.returncode == 0, created.stderr
    file = tmp_path / "signing.key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "has a signing key" in key("create").stderr
    content = signatures.signed(file, MANIFEST)[signatures.ENVELOPE]
    rotated = key("rotate").stdout
    assert key("show").stdout == rotated + created.stdout
    assert signatures.problem(content, MANIFEST, signatures.read(file)) is None
    assert signatures.problem(content, MANIFEST, signatures.read(file)[:1]) is not None
    assert key("show", BATCHYARD_URL=stack.url, BATCHYARD_API_KEY=stack.key).stdout == "\n", "the stack has none"
