"""Converting files: every line is accounted for, losses are reported, and the output passes `mens data check`."""

from __future__ import annotations

import json
import stat
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.conversion.file_report import ConversionReport
from cli.conversion.outcomes import ConvertedMethod, DropReason, Note, RowOptions
from corpus.filters.rules import RedactionRules
from openai_migration.conversion.files import FileTask, convert_file, report_of
from openai_migration.conversion.training_files import guess_method
from openai_migration.prompts import to_request
from shared.datasets.reader import DatasetReport, read_records
from shared.hashing import digest_json
from tests.support.fake_openai import chat_line

IMAGE_ROW = json.dumps(
    {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
            {"role": "assistant", "content": "A cat."},
        ]
    }
).encode()
PARTS_ROW = IMAGE_ROW.replace(
    b'"image_url", "image_url": {"url": "data:image/png;base64,AAAA"}', b'"text", "text": "Q"'
)


def convert(folder: Path, content: bytes, **options: Any) -> tuple[ConversionReport, bytes]:
    source = folder / "rows.jsonl"
    source.write_bytes(content)
    report, _ = convert_file(FileTask(source, folder / "out.jsonl", **options))
    output = folder / "out.jsonl"
    return report, output.read_bytes() if output.exists() else b""


def account(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in report_of(folder / "out.jsonl").read_text().splitlines()]


def test_a_row_without_anything_special_is_kept_byte_for_byte(tmp_path: Path) -> None:
    content = b'{ "messages": [{"role":"user","content":"\\u00e9"} , {"content":"A","role":"assistant"}], "mine": 1 }\n'
    report, output = convert(tmp_path, b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    assert output == content
    assert (report.kept, report.changed, report.dropped) == (1, 0, 0)


def test_each_line_has_a_line_of_report(tmp_path: Path) -> None:
    lines = [chat_line("Q", "A"), PARTS_ROW + b"\n", IMAGE_ROW + b"\n", b"oops\n", b"\n", b"[]\n", chat_line("q", "a")]
    report, output = convert(tmp_path, b"".join(lines), allow_image_loss=True)
    assert account(tmp_path) == [
        {"line": 1, "outcome": "kept", "rows": 1},
        {"line": 2, "outcome": "changed", "rows": 1, "changes": ["text_parts_joined"]},
        {"line": 3, "outcome": "dropped", "reason": "image"},
        {"line": 4, "outcome": "dropped", "reason": "ROW_NOT_JSON"},
        {"line": 5, "outcome": "dropped", "reason": "ROW_BLANK"},
        {"line": 6, "outcome": "dropped", "reason": "ROW_NOT_OBJECT"},
        {"line": 7, "outcome": "kept", "rows": 1, "notes": ["repeated"]},
    ]
    assert (report.lines, report.kept, report.changed, report.dropped, report.rows) == (7, 2, 1, 4, 3)
    assert report.examples["image"] == [3]
    assert output.count(b"\n") == 3


def test_a_row_whose_schema_an_installation_would_refuse_is_kept_and_said(tmp_path: Path) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "odd", "schema": {"type": "integer", "multipleOf": 3}}}
    row = json.dumps({**json.loads(chat_line("Q", "A")), "response_format": form}).encode() + b"\n"
    report, output = convert(tmp_path, chat_line("q", "a") + row)
    assert output.endswith(row)
    why = {"response_format odd": "the engine's grammars do not support multipleOf"}
    assert account(tmp_path)[1] == {
        "line": 2,
        "outcome": "kept",
        "rows": 1,
        "notes": ["schema_refused"],
        "schemas": why,
    }
    assert (report.kept, report.notes["schema_refused"], report.schemas) == (2, 1, why)


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    convert(tmp_path, chat_line("Q", "A"))
    written = (tmp_path / "out.jsonl", report_of(tmp_path / "out.jsonl"))
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in written)


def test_a_file_that_loses_many_rows_for_their_images_is_not_written(tmp_path: Path) -> None:
    content = chat_line("Q", "A") * 93 + (IMAGE_ROW + b"\n") * 7
    report, output = convert(tmp_path, content)
    assert (report.refused, report.output, output) == ("7% of the lines have images and would be lost", "", b"")
    assert len(account(tmp_path)) == 100
    report, output = convert(tmp_path, content, allow_image_loss=True)
    assert (report.refused, report.rows, output.count(b"\n")) == ("", 93, 93)


def test_a_refused_conversion_leaves_no_rows_of_one_before(tmp_path: Path) -> None:
    content = chat_line("Q", "A") * 9 + IMAGE_ROW + b"\n"
    assert convert(tmp_path, content, allow_image_loss=True)[1]
    report, output = convert(tmp_path, content)
    assert (report.refused, output) == ("10% of the lines have images and would be lost", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.report.jsonl", "rows.jsonl"]


def test_images_of_a_twentieth_of_the_rows_are_let_go(tmp_path: Path) -> None:
    report, _ = convert(tmp_path, chat_line("Q", "A") * 95 + (IMAGE_ROW + b"\n") * 5)
    assert (report.refused, report.dropped) == ("", 5)


def test_a_row_of_the_training_file_is_taken_out_of_the_validation_file(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(chat_line("Q1", "A") + chat_line("Q2", "A"))
    _, trained = convert_file(FileTask(tmp_path / "train.jsonl", tmp_path / "train.out.jsonl"))
    report, _ = convert(tmp_path, chat_line("q1 ", "a") + chat_line("Q3", "A"), trained=[trained])
    assert (dict(report.drops), report.kept) == ({"in_training_file": 1}, 1)


def test_a_prompt_that_was_sent_to_the_old_model_is_not_trained_on(tmp_path: Path) -> None:
    asked = to_request(json.loads(chat_line("Q1", "A")))
    content = chat_line("Q1", "A") + chat_line("Q2", "A")
    report, _ = convert(tmp_path, content, held_out=frozenset({digest_json(asked)}))
    assert dict(report.drops) == {"sent_to_the_old_model": 1}


def test_markers_are_shown_and_stripped_on_request_only(tmp_path: Path) -> None:
    content = b"".join(
        json.dumps({"prompt": f"Question {n}\n\n###\n\n", "completion": f" answer {n} END"}).encode() + b"\n"
        for n in range(20)
    )
    report, output = convert(tmp_path, content)
    assert (report.separator, report.stop, report.stripped, output) == ("\n\n###\n\n", " END", False, content)
    report, output = convert(tmp_path, content, strip=True)
    assert (report.stripped, report.changed) == (True, 20)
    assert json.loads(output.splitlines()[3]) == {"prompt": "Question 3", "completion": "answer 3"}


@pytest.mark.parametrize("ends", [["a sentence.", "Hm."] * 5, ["x###", "y"] * 5, ["x###"] * 4, []])
def test_other_endings_are_not_markers(tmp_path: Path, ends: list[str]) -> None:
    rows = [json.dumps({"prompt": f"{n} {end}", "completion": f"{n}"}).encode() for n, end in enumerate(ends)]
    assert convert(tmp_path, b"\n".join(rows))[0].separator == ""


def test_the_method_of_a_file_without_a_job_is_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n{"input": {"messages": []}, "preferred_output": []}\n')
    assert guess_method(path) is ConvertedMethod.DPO
    path.write_bytes(chat_line("Q", "A"))
    assert guess_method(path) is ConvertedMethod.SUPERVISED
    path.write_bytes(b"")
    assert guess_method(path) is ConvertedMethod.SUPERVISED


def test_a_line_that_is_far_too_long_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai_migration.conversion.lines.LONGEST_LINE_BYTES", 100)
    report, _ = convert(tmp_path, b"x" * 450 + b"\n" + b'{"prompt":"Q","completion":"A"}\n')
    assert (report.lines, dict(report.drops), report.kept) == (2, {"ROW_TOO_LONG": 1}, 1)


def test_redaction_comes_first_and_is_accounted_for(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("# mail\n\n[\\w.]+@[\\w.]+ => (mail)\n")
    content = chat_line("I am ann@example.com", "Hello.") + chat_line("Q", "A")
    report, output = convert(tmp_path, content, redaction=RedactionRules(tmp_path / "rules"))
    assert json.loads(output.splitlines()[0])["messages"][0]["content"] == "I am (mail)"
    assert (dict(report.changes), report.kept) == ({"redacted": 1}, 1)
    assert b"example.com" not in b"".join(path.read_bytes() for path in tmp_path.glob("out*"))


LINES = [
    chat_line("Q", "A").rstrip(),
    PARTS_ROW,
    IMAGE_ROW,
    b"",
    b"oops",
    b"\xff",
    b'{"a": "\\ud800"}',
    b"[" * 2000,
    b'{"prompt": "Q", "completion": "A", "weight": 1}',
    b'{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}], "rating": 9, "tools": []}',
    b'{"messages": [{"role": "user", "content": "Q"}], "name": 99999999999999999999999}',
    b'{"input": {"messages": [{"role": "user", "content": "Q"}]}, "preferred_output": []}',
    chat_line("Q", "A").rstrip().replace(b"}]}", b'}, {"role": "user", "content": "and?"}]}'),
]


@given(
    lines=st.lists(st.one_of(st.sampled_from(LINES), st.binary(max_size=20)), max_size=12),
    options=st.builds(RowOptions, split_answers=st.booleans(), as_supervised=st.booleans()),
)
def test_kept_changed_and_dropped_are_all_lines(
    lines: list[bytes], options: RowOptions, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    content = b"\n".join(lines)
    report, output = convert(folder, content, options=options, allow_image_loss=True)
    count = content.count(b"\n") + bool(content) - content.endswith(b"\n")
    assert report.lines == report.kept + report.changed + report.dropped == len(account(folder)) == count
    read = DatasetReport()
    assert len(list(read_records(output.splitlines(keepends=True), read))) == report.rows
    assert not read.error_count


def test_several_processes_convert_as_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.datasets.file_parts.PART_BYTES", 2_000)
    lines = [chat_line(f"Question {number % 60}?", "A" * 100) for number in range(100)]
    lines[10:10] = [PARTS_ROW + b"\n", IMAGE_ROW + b"\n", b"oops\n", b"\n", chat_line("q", "a" * 9_000)]
    (tmp_path / "rows.jsonl").write_bytes(b"\xef\xbb\xbf" + b"".join(lines))
    found = []
    for name, executor in (("one", None), ("several", ThreadPoolExecutor(2))):
        # The last rows' prompts were asked of the old model; the 50th row is in the training file.
        asked = frozenset({digest_json(to_request(json.loads(lines[-1])))})
        _, trained = convert_file(
            FileTask(write(tmp_path / "trained.jsonl", lines[50]), tmp_path / "trained.out.jsonl")
        )
        task = FileTask(tmp_path / "rows.jsonl", tmp_path / f"{name}.jsonl", trained=[trained], held_out=asked)
        read: list[int] = []
        report, digests = convert_file(task, read.append, executor)
        assert read[-1] == task.source.stat().st_size
        report.output = ""
        found.append((report, len(digests), task.output.read_bytes(), report_of(task.output).read_bytes()))
    assert found[0] == found[1]
    assert found[0][0].drops[DropReason.IN_TRAINING_FILE] and found[0][0].drops[DropReason.SENT_TO_THE_OLD_MODEL]
    assert found[0][0].notes[Note.REPEATED]


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    content = b"".join(chat_line(f"Question {number}?" + "x" * 500, "Answer.") for number in range(5_000))
    source = tmp_path / "rows.jsonl"
    source.write_bytes(content)
    tracemalloc.start()
    convert_file(FileTask(source, tmp_path / "out.jsonl"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(content)
