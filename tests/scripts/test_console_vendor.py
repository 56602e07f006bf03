"""The console's libraries equal their list, and npm's files, byte for byte."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from scripts.console_vendor import FOLDER, LIST, main

VENDORED: dict[str, Any] = json.loads((FOLDER / LIST).read_text())
PERMISSIVE = {"MIT", "Apache-2.0"}


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_file_has_the_digest_of_the_list() -> None:
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files_of(FOLDER).items() if name != LIST}
    assert digests == {name: file["sha256"] for name, file in VENDORED["files"].items()}


def test_every_package_is_permissive_and_has_its_licence() -> None:
    assert {package["license"] for package in VENDORED["packages"].values()} <= PERMISSIVE
    licensed = {file["package"] for name, file in VENDORED["files"].items() if name.startswith("LICENSE-")}
    assert licensed == VENDORED["packages"].keys()


def test_libraries_import_only_their_neighbours() -> None:
    for name, content in files_of(FOLDER).items():
        sources = [part.partition(b'"')[0].decode() for part in content.split(b'from"')[1:]] if name != LIST else []
        assert {source.removeprefix("./") for source in sources if source.startswith("./")} <= VENDORED["files"].keys()
        assert all(source.startswith("./") for source in sources), name


@pytest.mark.network
def test_npm_gives_the_same_files(tmp_path: Path) -> None:
    shutil.copy(FOLDER / LIST, tmp_path)
    main(tmp_path)
    assert files_of(tmp_path) == files_of(FOLDER)


@pytest.mark.network
def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    one = {name: file for name, file in VENDORED["files"].items() if name == "htm.js"}
    one["htm.js"] |= {"sha256": "0" * 64}
    pinned = {"packages": {"htm": VENDORED["packages"]["htm"]}, "files": one}
    (tmp_path / LIST).write_text(json.dumps(pinned))
    with pytest.raises(SystemExit, match=r"^htm\.js is [0-9a-f]{64}, not 0{64}\.$"):
        main(tmp_path)
    pinned["packages"]["htm"] |= {"integrity": "sha512-AAAA"}
    (tmp_path / LIST).write_text(json.dumps(pinned))
    with pytest.raises(SystemExit, match=r"^htm@3\.1\.1 is sha512-.+, not sha512-AAAA\.$"):
        main(tmp_path)
