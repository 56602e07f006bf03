"""Which files are converted: those of jobs, with local originals for those that could not be downloaded, and their
destinations.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conversion.outcomes import ConvertedMethod, RowOptions
from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.export import export_project
from openai_migration.archive.folder import Archive
from openai_migration.conversion.training_files import Choices, convert_files, find_files, output_of
from openai_migration.prompts import file_requests
from openai_migration.record import GOLDEN
from shared.errors import ArtifactInvalid
from shared.hashing import digest_json
from tests.support.fake_openai import KEY, ServedOpenAI, chat_line, job, stored_file

ALL = Choices(RowOptions())


@pytest.fixture
def folder(openai: ServedOpenAI, tmp_path: Path) -> Path:
    return export(openai, tmp_path / "a")


def export(openai: ServedOpenAI, folder: Path) -> Path:
    with Archive(folder) as archive, openai.client(project="P") as client:
        export_project(client, archive)
        archive.finish()
    return folder


def hundred_bytes(question: str, answer: str) -> bytes:
    """A file of one row that is as long as OpenAI says of its files."""
    return json.dumps(json.loads(chat_line(question, answer)), separators=(",", ":")).encode().ljust(99) + b"\n"


def test_files_of_jobs_are_found_training_files_first(folder: Path) -> None:
    files = find_files(ArchiveContents(folder), [])
    assert [(file.file_id, file.path is not None, file.jobs) for file in files] == [
        ("file-train", False, ["ftjob-new", "ftjob-old", "ftjob-failed"]),
        ("file-valid", True, ["ftjob-new"]),
    ]
    assert files[1].validates == ["file-train"]


def test_an_original_takes_the_place_of_what_was_refused_by_name_and_size(folder: Path, tmp_path: Path) -> None:
    local = tmp_path / "local"
    (local / "deep").mkdir(parents=True)
    (local / "train.jsonl").write_bytes(b"another file of this name")
    (local / "deep" / "train.jsonl").write_bytes(hundred_bytes("Q", "A"))
    files = find_files(ArchiveContents(folder), [local])
    assert [file.path for file in files if file.file_id == "file-train"] == [local / "deep" / "train.jsonl"]
    assert len(files) == 2


def test_an_original_that_belongs_to_no_job_is_converted_too(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "mine.jsonl"
    own.write_bytes(chat_line("Q", "A"))
    file = find_files(ArchiveContents(folder), [own])[1]
    assert (file.project, file.path, output_of(file)) == ("originals", own, "data/originals/mine.jsonl")


def test_rows_that_both_files_have_are_taken_out_of_the_validation_file(folder: Path, tmp_path: Path) -> None:
    train = tmp_path / "train.jsonl"
    train.write_bytes(hundred_bytes("Question 1?", "Answer 1."))
    files = find_files(ArchiveContents(folder), [train])
    with Archive(folder) as archive:
        done = convert_files(archive, files, ALL)
    reports = {file.file_id: file.report for file in done}
    assert reports["file-valid"] is not None
    assert dict(reports["file-valid"].drops) == {"in_training_file": 1}
    assert (folder / "data/P/file-valid.jsonl").read_bytes().count(b"\n") == 3
    written = json.loads((folder / "convert-report.json").read_bytes())["files"]
    assert {file["file_id"]: file["report"]["lines"] for file in written} == {"file-train": 1, "file-valid": 4}


def test_the_report_names_converted_rows_by_their_place_in_the_archive(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps after it are run from elsewhere, and the folder is moved."""
    monkeypatch.chdir(folder.parent)
    with Archive(Path(folder.name)) as archive:
        done = convert_files(archive, find_files(ArchiveContents(Path(folder.name)), []), ALL)
    assert [file.report.output for file in done if file.report] == ["data/P/file-valid.jsonl"]


def test_training_rows_that_are_prompts_are_held_out(folder: Path, tmp_path: Path) -> None:
    golden = folder / GOLDEN / "P"
    golden.mkdir(parents=True)
    own = tmp_path / "mine.jsonl"
    own.write_bytes(chat_line("Q1", "A") + chat_line("Q2", "A"))
    asked = next(file_requests(own))
    line = {"id": digest_json(asked), "source": "training", "request": asked, "model": "ft:m", "answers": []}
    (golden / "m.jsonl").write_text(json.dumps(line) + "\n")
    with Archive(folder) as archive:
        report = convert_files(archive, find_files(ArchiveContents(folder), [own]), ALL)[1].report
    assert report is not None
    assert dict(report.drops) == {"sent_to_the_old_model": 1}


def test_rows_of_other_methods_go_to_files_that_say_so(openai: ServedOpenAI, tmp_path: Path) -> None:
    project = openai.fake.projects[KEY]
    openai.fake.forbidden_files.clear()
    preference = {
        "input": {"messages": [{"role": "user", "content": "Q"}]},
        "preferred_output": [{"role": "assistant", "content": "A"}],
    }
    project.lists["fine_tuning/jobs"] = [job("ftjob-dpo", None, method={"type": "dpo"}, training_file="file-dpo")]
    project.lists["files"].append(stored_file("file-dpo", "fine-tune", "dpo.jsonl"))
    project.contents["file-dpo"] = json.dumps(preference).encode()
    folder = export(openai, tmp_path / "b")
    files = [file for file in find_files(ArchiveContents(folder), []) if file.file_id == "file-dpo"]
    assert files[0].method is ConvertedMethod.DPO
    with Archive(folder) as archive:
        convert_files(archive, files, ALL)
        convert_files(archive, files, Choices(RowOptions(as_supervised=True)))
    assert json.loads((folder / "data/P/file-dpo.dpo.jsonl").read_bytes()) == preference
    assert json.loads((folder / "data/P/file-dpo.jsonl").read_bytes())["messages"][1]["content"] == "A"


def test_a_file_that_was_changed_since_is_refused(folder: Path) -> None:
    path = ArchiveContents(folder).file("P", "file-valid")
    assert path is not None
    path.write_bytes(path.read_bytes().replace(b"Answer", b"Rumour"))
    with pytest.raises(ArtifactInvalid, match="was changed after the export"):
        find_files(ArchiveContents(folder), [])
