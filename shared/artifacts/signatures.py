"""Signatures of adapters and merged models: Ed25519 over a manifest's digest, in a file next to the manifest.

A manifest covers every byte of its folder by digest, so signing its digest covers everything. The signature is not in
the manifest, so that signing does not change the artifact's name, and a folder can be signed later or again.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from shared.artifacts.manifests import MANIFEST_NAME, MODEL_MANIFEST_NAME
from shared.base_models.catalog import Sha256
from shared.errors import ArtifactInvalid, Code, InvalidRequest
from shared.hashing import canonical_json, digest_file
from shared.host import setting_of

SIGNATURE_NAME = "adapter_signature.json"
MODEL_SIGNATURE_NAME = "model_signature.json"
MAX_SIGNATURE_BYTES, KEY_BYTES = 4096, 32
Format = Literal["mens_adapter_signature", "mens_model_signature"]


@dataclass(frozen=True, slots=True)
class SignedKind:
    """A kind of artifact that can be signed.

    Attributes:
        noun: the kind's name in messages.
        domain: prefix of the signed digest, so that a signature made for anything else is not valid for such a
            manifest.
        unsigned, invalid: error codes of the refusals.
    """

    noun: str
    manifest_name: str
    signature_name: str
    format: Format
    domain: bytes
    unsigned: Code
    invalid: Code


ADAPTER = SignedKind(
    "adapter",
    MANIFEST_NAME,
    SIGNATURE_NAME,
    "mens_adapter_signature",
    b"mens adapter manifest 1\n",
    Code.ADAPTER_UNSIGNED,
    Code.ADAPTER_SIGNATURE_INVALID,
)
MERGED_MODEL = SignedKind(
    "merged model",
    MODEL_MANIFEST_NAME,
    MODEL_SIGNATURE_NAME,
    "mens_model_signature",
    b"mens merged model manifest 1\n",
    Code.MODEL_UNSIGNED,
    Code.MODEL_SIGNATURE_INVALID,
)


class Signature(BaseModel):
    """``adapter_signature.json`` or ``model_signature.json``; keys and signatures are base64."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Format = "mens_adapter_signature"
    version: Literal[1] = 1
    manifest_digest: Sha256
    public_key: str
    signature: str


def make_key(path: Path) -> str:
    """Write a new private key (PEM, readable by its owner alone); return the public key, base64."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    # Exclusive, so that no key is ever overwritten; created with its mode, because a file could be opened before a
    # chmod.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def sign_folder(folder: Path, key_file: Path, kind: SignedKind = ADAPTER) -> Signature:
    """Sign a folder's manifest, in a file next to it. The same key and manifest give the same bytes.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID``: the file is not an Ed25519 private key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(key_file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise _no_key(key_file, type(error).__name__) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(key_file, "it is another kind of key")
    digest = digest_file(folder / kind.manifest_name)
    made = Signature(
        format=kind.format,
        manifest_digest=digest,
        public_key=base64.b64encode(key.public_key().public_bytes_raw()).decode(),
        signature=base64.b64encode(key.sign(kind.domain + digest.encode())).decode(),
    )
    (folder / kind.signature_name).write_bytes(canonical_json(made.model_dump(mode="json")))
    return made


def verify_signature(
    raw: bytes, manifest_digest: str, trusted_keys: Collection[str] | None, kind: SignedKind = ADAPTER
) -> Signature:
    """Check a signature file's bytes.

    Args:
        raw: the file's content.
        manifest_digest: SHA-256 of the manifest that must have been signed.
        trusted_keys: public keys, base64, one of which must have signed; None: any key.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        signature = Signature.model_validate_json(raw[:MAX_SIGNATURE_BYTES])
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(signature.public_key, validate=True))
        public.verify(base64.b64decode(signature.signature, validate=True), kind.domain + manifest_digest.encode())
    except (ValidationError, binascii.Error, ValueError):
        raise _invalid(kind, "it cannot be read") from None
    except InvalidSignature:
        raise _invalid(kind, "it does not match this manifest") from None
    if signature.format != kind.format:
        raise _invalid(kind, f"its format is {signature.format}")
    if signature.manifest_digest != manifest_digest:
        raise _invalid(kind, "it refers to another manifest")
    if trusted_keys is not None and signature.public_key not in trusted_keys:
        raise _invalid(kind, f"its key {signature.public_key} is not trusted here")
    return signature


def read_trusted_keys(path: Path) -> frozenset[str]:
    """Read the public keys of a file, one per line; empty lines and comments (``#``) are skipped.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID``: the file is unreadable, or a line is not a key: nothing is trusted by
            mistake.
    """
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
        keys = frozenset(line for line in lines if line)
        lengths = {len(base64.b64decode(key, validate=True)) for key in keys}
    except (OSError, ValueError) as error:
        raise _no_key(path, str(error)) from None
    if lengths - {KEY_BYTES}:
        raise _no_key(path, f"a line is not a key of {KEY_BYTES} bytes")
    return keys


def unsigned(kind: SignedKind = ADAPTER) -> ArtifactInvalid:
    """Return the refusal of an unsigned artifact where a signature is required."""
    return ArtifactInvalid(
        kind.unsigned,
        f"The {kind.noun} has no signature, but this replica serves only signed ones.",
        remedy=(
            "Set MENS_SIGNING_KEY on the workers and train, import or merge it again, or leave "
            "MENS_SERVING_TRUSTED_KEYS unset."
        ),
        param=kind.signature_name,
    )


def _invalid(kind: SignedKind, reason: str) -> ArtifactInvalid:
    return ArtifactInvalid(
        kind.invalid,
        f"The {kind.noun}'s signature is not accepted: {reason}.",
        remedy=(
            "Restore the signature from a backup, or add its key to MENS_SERVING_TRUSTED_KEYS if you trust its owner."
        ),
        param=kind.signature_name,
    )


def _no_key(path: Path, reason: str) -> InvalidRequest:
    variable = setting_of(path)
    return InvalidRequest(
        Code.SETTINGS_INVALID,
        f"{variable + ': ' if variable else ''}{path} does not contain a usable key: {reason}.",
        remedy="Create a key with `mens adapter keygen FILE`; it prints the public key.",
        param=variable or str(path),
    )
