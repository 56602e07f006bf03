"""Canonical JSON and SHA-256 digests, which name values and files.

Canonical JSON is UTF-8, keys sorted, no white space, no NaN; floats in Python's shortest round-trip form.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

CHUNK_BYTES = 1 << 20
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def canonical_json(value: Any) -> bytes:
    """Return the canonical bytes of a JSON value; equal values give equal bytes on every machine."""
    return _encode(value).encode()


def digest_json(value: Any) -> str:
    """Return the SHA-256 (64 hex digits) over :func:`canonical_json`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 (64 hex digits) of a file's bytes, which are read in pieces of 1 MiB."""
    with path.open("rb") as file:
        return digest_stream(file)


def digest_stream(stream: BinaryIO) -> str:
    """Return the SHA-256 (64 hex digits) of the rest of a stream, which is read in pieces of 1 MiB."""
    sha256 = hashlib.sha256()
    while chunk := stream.read(CHUNK_BYTES):
        sha256.update(chunk)
    return sha256.hexdigest()
