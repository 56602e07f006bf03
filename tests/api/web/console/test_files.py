"""The console's files are under the digest of all of them, and the page names that digest."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from api.web.console.files import FOLDER, ConsoleFiles, console_files

SCRIPTS = {"app.js": 'import { a } from "./lib/a.js";\n', "lib/a.js": "export const a = 1;\n", "lib/first_calls.js": ""}
"""The least that is joined."""
SENT = {"a.css", "first_screen.js", "lib/first_calls.js"}


def written(folder: Path, **more: str) -> Path:
    for name, text in {
        "index.html": '<link href="/console/{digest}/a.css">',
        "a.css": "a {}",
        **SCRIPTS,
        **more,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_page_names_the_digest_of_all_files(tmp_path: Path) -> None:
    files = ConsoleFiles.read(written(tmp_path))
    assert len(files.digest) == 16
    assert files.index.body.decode() == f'<link href="/console/{files.digest}/a.css">'
    assert files.others.keys() == SENT


def test_digest_changes_with_each_content_and_name(tmp_path: Path) -> None:
    versions = [{}, {"a.css": "b {}"}, {"index.html": "{digest}"}, {"lib/b.js": "1"}, {"lib/c.js": "1"}]
    digests = {ConsoleFiles.read(written(tmp_path / str(i), **more)).digest for i, more in enumerate(versions)}
    assert len(digests) == len(versions)
    assert ConsoleFiles.read(written(tmp_path / "again")).digest in digests


def test_digest_is_that_of_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another way of joining the same sources is another release for a browser, which keeps files for a year."""
    before = ConsoleFiles.read(written(tmp_path)).digest
    monkeypatch.setattr("api.web.console.files.join_modules", lambda modules, *_, **__: modules)
    assert ConsoleFiles.read(tmp_path).digest != before


def test_files_that_are_not_for_browsers_are_not_sent(tmp_path: Path) -> None:
    names = {"vendor/LICENSE": "MIT", "types/api.d.ts": "x", "vendor/vendored.json": "{}", "lib/b.js": "1"}
    assert ConsoleFiles.read(written(tmp_path, **names)).others.keys() == {*SENT, "lib/b.js"}


def test_own_files_are_compressed_and_small() -> None:
    files = console_files()
    own = [files.index, *files.others.values()]
    assert all(gzip.decompress(file.compressed) == file.body for file in own)
    assert sum(len(file.compressed) for file in own) <= 150_000
    assert all(b"{digest}" not in file.body for file in own), (
        f"only {FOLDER / 'index.html'} has the placeholder replaced"
    )
