"""Signatures: only the right manifest with the right key passes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from shared.artifacts.manifests import MANIFEST_NAME
from shared.artifacts.signatures import (
    SIGNATURE_NAME,
    make_key,
    read_trusted_keys,
    sign_folder,
    verify_signature,
)
from shared.errors import ArtifactInvalid, Code, InvalidRequest
from shared.hashing import digest_file


@pytest.fixture
def public(tmp_path: Path) -> str:
    return make_key(tmp_path / "key.pem")


@pytest.fixture
def signed(tmp_path: Path, public: str) -> Path:
    """A folder with a manifest and its signature."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / MANIFEST_NAME).write_bytes(b'{"rank":4}')
    sign_folder(folder, tmp_path / "key.pem")
    return folder


def test_what_was_signed_is_verified_with_the_key_that_signed(signed: Path, public: str) -> None:
    raw, digest = (signed / SIGNATURE_NAME).read_bytes(), digest_file(signed / MANIFEST_NAME)
    found = verify_signature(raw, digest, {public})
    assert (found.public_key, found.manifest_digest) == (public, digest)
    assert verify_signature(raw, digest, None) == found


def test_signing_again_gives_the_same_bytes(signed: Path, tmp_path: Path) -> None:
    before = (signed / SIGNATURE_NAME).read_bytes()
    sign_folder(signed, tmp_path / "key.pem")
    assert (signed / SIGNATURE_NAME).read_bytes() == before


def test_a_private_key_is_its_owners_and_is_never_overwritten(tmp_path: Path, public: str) -> None:
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600
    assert len(base64.b64decode(public)) == 32
    with pytest.raises(FileExistsError):
        make_key(tmp_path / "key.pem")


def refused(raw: bytes, digest: str, trusted: set[str] | None = None) -> ArtifactInvalid:
    with pytest.raises(ArtifactInvalid) as caught:
        verify_signature(raw, digest, trusted)
    assert caught.value.code == Code.ADAPTER_SIGNATURE_INVALID
    return caught.value


def test_a_signature_of_another_manifest_is_refused(signed: Path) -> None:
    assert "does not match this manifest" in refused((signed / SIGNATURE_NAME).read_bytes(), "0" * 64).message


def test_a_key_that_is_not_trusted_is_named(signed: Path, public: str, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other.pem")
    error = refused((signed / SIGNATURE_NAME).read_bytes(), digest_file(signed / MANIFEST_NAME), {other})
    assert public in error.message


@pytest.mark.parametrize(
    "change",
    [
        {"signature": "AAAA"},
        {"signature": "not base64!"},
        {"public_key": "AAAA"},
        {"manifest_digest": "0" * 64},
        {"version": 2},
        {"more": 1},
    ],
    ids=str,
)
def test_a_changed_signature_is_refused(signed: Path, change: dict[str, Any]) -> None:
    content = json.loads((signed / SIGNATURE_NAME).read_text()) | change
    refused(json.dumps(content).encode(), digest_file(signed / MANIFEST_NAME))


@pytest.mark.parametrize("raw", [b"", b"[]", b"\xff", b" " * 5000 + b"{}"], ids=lambda raw: repr(raw[:4]))
def test_bytes_that_are_not_a_signature_are_refused(raw: bytes) -> None:
    refused(raw, "0" * 64)


def test_trusted_keys_are_lines_with_comments(tmp_path: Path, public: str) -> None:
    file = tmp_path / "trusted"
    file.write_text(f"# ours\n{public}  # alice\n\n")
    assert read_trusted_keys(file) == {public}


@pytest.mark.parametrize("content", ["AAAA\n", "no key\n", None])
def test_a_file_with_anything_but_keys_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "trusted").write_text(content)
    with pytest.raises(InvalidRequest) as caught:
        read_trusted_keys(tmp_path / "trusted")
    assert caught.value.code == Code.SETTINGS_INVALID


def test_another_kind_of_key_does_not_sign(signed: Path, tmp_path: Path) -> None:
    (tmp_path / "other.pem").write_text("no key")
    with pytest.raises(InvalidRequest) as caught:
        sign_folder(signed, tmp_path / "other.pem")
    assert caught.value.code == Code.SETTINGS_INVALID
