"""The archive: private files, an index that survives any interruption, and one writer at a time."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_migration.archive.folder import (
    JOURNAL,
    MANIFEST,
    Archive,
    ArchiveEntry,
    file_name,
    is_finished,
    now,
    read_entries,
    write_json,
)
from shared.errors import ArtifactInvalid, Code, Conflict


def add(archive: Archive, name: str, content: bytes = b"{}") -> ArchiveEntry:
    with archive.body() as body:
        body.write(content)
        return archive.add(ArchiveEntry("P", "GET", name, {}, 200, now(), file_name("P", name)), body)


def test_folders_and_files_are_their_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    folder.mkdir(mode=0o755)
    with Archive(folder) as archive:
        add(archive, "a")
        write_json(folder / "inventory.json", {})
        archive.finish()
    assert all(
        stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
        for path in [folder, *folder.rglob("*")]
    )


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear")
    mode = tmp_path.stat().st_mode
    with pytest.raises(ArtifactInvalid, match="other files"), Archive(tmp_path):
        pass
    assert tmp_path.stat().st_mode == mode


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    with Archive(tmp_path / "a"), pytest.raises(Conflict) as raised, Archive(tmp_path / "a"):
        pass
    assert raised.value.code == Code.ARCHIVE_INVALID
    with Archive(tmp_path / "a"):
        pass


def test_what_is_stored_is_found_until_its_file_is_lost(tmp_path: Path) -> None:
    with Archive(tmp_path / "a") as archive:
        entry = add(archive, "x", b'{"data": 1}')
        assert archive.find(entry.key) == entry
        assert entry.bytes == 11
        assert entry.sha256
        (archive.folder / entry.file).write_bytes(b"{}")
        assert archive.find(entry.key) is None


def test_an_archive_whose_project_could_not_be_read_is_unfinished(tmp_path: Path) -> None:
    with Archive(tmp_path / "a") as archive:
        archive.finish({"P": "OpenAI does not respond."})
        assert not is_finished(archive.folder)
        # Another step leaves it as it is.
        archive.finish()
        assert not is_finished(archive.folder)
        archive.finish({})
        assert is_finished(archive.folder)


@settings(max_examples=15)
@given(cut=st.integers(0, 900))
def test_a_journal_that_is_cut_anywhere_is_read_on(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("archive")
    with Archive(folder) as archive:
        keys = [add(archive, name).key for name in "abcd"]
    journal = folder / JOURNAL
    content = journal.read_bytes()
    journal.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n")
    assert list(read_entries(folder)) == keys[:whole]
    with Archive(folder) as archive:
        add(archive, "e")
        assert not is_finished(folder)
        archive.finish()
    assert is_finished(folder)
    assert len(read_entries(folder)) == whole + 1


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"format": "mens-openai-archive/9", "finished_at": "", "unfinished": {}, "requests": []}']
)
def test_an_index_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(ArtifactInvalid, match="index"):
        read_entries(tmp_path)


@pytest.mark.parametrize("part", ["..", ".", "../../etc", "a/b", ".hidden", "ft:gpt:acme::x", "a\0b"])
def test_no_id_leads_out_of_the_archive(tmp_path: Path, part: str) -> None:
    path = (tmp_path / file_name("P", part, "page-0001.json")).resolve()
    assert path.parent.parent == tmp_path / "raw" / "P"
    assert "\0" not in str(path)
    assert not path.parent.name.startswith(".")
