"""Signed manifests: in-toto statements in DSSE envelopes, and the Ed25519 key of a deployment.

The key file has the private key in PEM, and behind it the public keys that earlier manifests were signed with.
"""

import base64
import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from batchyard.errors import ConfigurationError

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
ENVELOPE = "manifest.dsse.json"
EARLIER = "earlier_manifests"
"""The key of a manifest with those of the work that it came from, by id: their files and SHA-256."""
UNSIGNED = "unsigned"
"""The key of a manifest that says why the deployment's key has not signed it."""
INPUT = "input"
"""The name of the input among the files that a manifest covers."""
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE = "urn:batchyard:manifest:v1"
_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)
_ENCODING, _SUBJECT = serialization.Encoding, serialization.PublicFormat.SubjectPublicKeyInfo


def covered_files(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the files that the manifest of a batch or job covers, the input first, with their SHA-256 and size."""
    is_batch = "batch_id" in manifest
    sha256 = manifest["input"]["sha256"] if is_batch else manifest["input_sha256"]
    if sha256 or is_batch:
        yield INPUT, {"sha256": sha256}
    yield from ({one["name"]: one for one in manifest["outputs"]} if is_batch else manifest["artifacts"]).items()


def key_id(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 of a public key's DER encoding, in hex."""
    return hashlib.sha256(key.public_bytes(_ENCODING.DER, _SUBJECT)).hexdigest()


def pem(key: Ed25519PublicKey) -> str:
    return key.public_bytes(_ENCODING.PEM, _SUBJECT).decode()


def public_keys(text: str) -> list[Ed25519PublicKey]:
    """Return the public keys of a text in PEM, those of private keys included, in order. Raises ValueError."""
    keys = []
    for block in _PEM_BLOCK.finditer(text):
        try:
            if block[1] == "PUBLIC KEY":
                key = serialization.load_pem_public_key(block[0].encode())
            else:
                key = serialization.load_pem_private_key(block[0].encode(), None).public_key()
        except (TypeError, UnsupportedAlgorithm) as error:  # TypeError: it is encrypted
            raise ValueError(str(error)) from error
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("it is not of Ed25519")
        keys.append(key)
    if not keys:
        raise ValueError("it has no key in PEM, which begins with -----BEGIN")
    return keys


def read(file: Path) -> list[Ed25519PublicKey]:
    """Return the public keys of the key file, the one in use first; [] without a file. Raises ConfigurationError."""
    try:
        text = file.read_text()
        keys = public_keys(text)
        _private_key(text)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"signing key {file} cannot be read: {error}") from error
    return keys


def shown(file: Path) -> list[dict[str, str]]:
    """Return the public keys of the key file as people see them. Raises ConfigurationError."""
    return [{"key_id": key_id(key), "public_key": pem(key)} for key in read(file)]


def _private_key(text: str) -> Ed25519PrivateKey:
    key = serialization.load_pem_private_key(text.encode(), None)
    assert isinstance(key, Ed25519PrivateKey), "public_keys has read it"
    return key


def new_key_file(former: Sequence[Ed25519PublicKey]) -> str:
    """Return the content of a key file with a new private key."""
    secret = Ed25519PrivateKey.generate().private_bytes(
        _ENCODING.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret.decode() + "".join(map(pem, former))


def signed(file: Path, manifest: bytes) -> dict[str, bytes]:
    """Return a manifest and its envelope by their names; the manifest alone without a key file.

    It raises nothing: work ends unsigned if the key cannot be used, and the manifest says why in `unsigned`.
    """
    try:
        if not file.exists():
            return {MANIFEST: manifest}
        return {MANIFEST: manifest, ENVELOPE: sign(_private_key(file.read_text()), manifest)}
    except Exception as error:
        log.exception("manifest not signed", extra={"signing_key": str(file)})
        unsigned = f"the signing key cannot be used: {type(error).__name__}: {error}"
        document = {**json.loads(manifest), UNSIGNED: unsigned}
        return {MANIFEST: json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"}


def sign(key: Ed25519PrivateKey, manifest: bytes) -> bytes:
    """Return the DSSE envelope of a manifest's in-toto statement, whose subjects are its files and itself."""
    predicate = json.loads(manifest)
    digests = {name: one["sha256"] for name, one in covered_files(predicate)}
    digests[MANIFEST] = hashlib.sha256(manifest).hexdigest()
    statement = {
        "_type": _STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in digests.items()],
        "predicateType": _PREDICATE_TYPE,
        "predicate": predicate,
    }
    payload = json.dumps(statement, ensure_ascii=False).encode()
    signature = {"keyid": key_id(key.public_key()), "sig": _base64(key.sign(_signed_bytes(_PAYLOAD_TYPE, payload)))}
    envelope = {"payload": _base64(payload), "payloadType": _PAYLOAD_TYPE, "signatures": [signature]}
    return json.dumps(envelope).encode() + b"\n"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _signed_bytes(payload_type: str, payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding, version 1."""
    encoded = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(encoded), encoded, len(payload), payload)


def problem(envelope: bytes, manifest: bytes, keys: Sequence[Ed25519PublicKey]) -> str | None:
    """Return why an envelope does not prove that one of the keys has signed this manifest; None if it does."""
    try:
        document = json.loads(envelope)
        payload, payload_type = base64.b64decode(document["payload"]), str(document["payloadType"])
        signatures = [(one.get("keyid"), base64.b64decode(one["sig"])) for one in document["signatures"]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return f"cannot be read as a DSSE envelope ({type(error).__name__}: {error})"
    encoded = _signed_bytes(payload_type, payload)
    if not any(_is_by(key, signature, encoded) for key in keys for _, signature in signatures):
        given, named = [key_id(key) for key in keys], [str(one) for one, _ in signatures]
        if set(given) & set(named):
            return "the signature is wrong: the envelope was changed"
        return f"is signed by key {', '.join(named) or '-'}, and the public key given is {', '.join(given)}"
    if payload_type != _PAYLOAD_TYPE:
        return f"has the payload type {payload_type!r}, and not {_PAYLOAD_TYPE}"
    statement = json.loads(payload)
    if (statement["_type"], statement["predicateType"]) != (_STATEMENT_TYPE, _PREDICATE_TYPE):
        return f"is about {statement['predicateType']!r}, and not a manifest"
    digests = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    return None if digests.get(MANIFEST) == hashlib.sha256(manifest).hexdigest() else "was signed for another manifest"


def _is_by(key: Ed25519PublicKey, signature: bytes, content: bytes) -> bool:
    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True
