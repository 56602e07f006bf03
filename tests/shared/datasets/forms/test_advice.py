"""Files of other programs get one sentence that names their form and the command that converts them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.contract.choices import DataMode
from shared.datasets.forms.advice import CONVERT, advise_on_folder
from shared.datasets.forms.files import FileForm, recognise_file
from shared.datasets.reader import check_dataset
from shared.datasets.report import inspect_file, refusal
from shared.errors import DatasetInvalid
from tests.support.foreign_rows import READABLE, UNREADABLE
from tests.support.invalid_rows import pair

ROW = {"prompt": "Hi", "response": "Hello"}
FILES: list[tuple[bytes, FileForm, str]] = [
    (json.dumps([ROW, ROW]).encode(), FileForm.JSON_ARRAY, "one JSON array"),
    (b"[\n" + json.dumps(ROW).encode() + b"\n]\n", FileForm.JSON_ARRAY, "one JSON array"),
    (json.dumps(ROW, indent=1).encode() * 2, FileForm.JSON_DOCUMENTS, "pretty-printed"),
    (json.dumps({"data": [ROW]}).encode(), FileForm.JSON_WRAPPED, "the rows are in its list `data`"),
    (b'{"rows": [' + json.dumps(ROW).encode(), FileForm.JSON_WRAPPED, "the rows are in its list `rows`"),
    (json.dumps({"version": 1, "train": [ROW]}, indent=2).encode(), FileForm.JSON_WRAPPED, "in its list `train`"),
    (b"question,answer\nHi,Hello\n", FileForm.TABLE, "table"),
    (b"prompt\tcompletion\nHi\tHello\n", FileForm.TABLE, "table"),
    (b"PAR1\x00\x00", FileForm.PARQUET, "Parquet"),
    (b"ARROW1\x00\x00", FileForm.ARROW, "Arrow"),
    (b"\x1f\x8b\x08\x00", FileForm.COMPRESSED, "compressed"),
    ('{"a": 1}\n'.encode("utf-16"), FileForm.UTF16, "UTF-16"),
]


@pytest.mark.parametrize("number", range(len(FILES)))
def test_file_is_recognised_by_its_content(number: int, tmp_path: Path) -> None:
    content, form, words = FILES[number]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    assert recognise_file(path) is form
    error = refusal(inspect_file(path))
    assert error is not None
    assert words in error.message
    assert error.remedy
    if form not in (FileForm.COMPRESSED, FileForm.UTF16):
        assert CONVERT in error.remedy


@pytest.mark.parametrize(
    "content",
    [
        pair() + b"\n",
        pair() + b"\n{\n",
        b'{"prompt": "Hi",\n' + pair(),
        b"\xef\xbb\xbf" + pair(),
        b"",
        b"\n",
        b"[1, 2]\n",
        b'{"messages": [{"role": "user", "content": "Hi"}]}',
    ],
)
def test_lines_of_json_are_not_called_another_form(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    assert recognise_file(path) is FileForm.JSON_LINES


def test_rows_of_another_form_are_named_with_their_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"conversations": [{"from": "human", "value": "Hi"}]}] * 80
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for mode in DataMode:
        error = refusal(inspect_file(path, mode=mode))
        assert error is not None
        assert "has 80 rows in ShareGPT's form" in error.message
        assert CONVERT in error.remedy
    with path.open("rb") as lines, pytest.raises(DatasetInvalid, match="ShareGPT's form"):
        check_dataset(lines, path=path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.jsonl", b'{"frage": "Hi", "antwort": "Hallo"}\n' * 3, "has rows with the keys `frage`, `antwort`"),
        ("rows.csv", b"frage,antwort\nHi,Hallo\n", "is a table with the columns `frage`, `antwort`"),
        ("rows.tsv", b'\xef\xbb\xbf"frage"\tantwort\nHi\tHallo\n', "is a table with the columns `frage`, `antwort`"),
        ("rows.jsonl", b'{"a\\u0007": "Hi", "b": "Hallo"}', "has rows with the keys `b`, …"),
    ],
)
def test_unknown_names_are_reported_with_the_option_that_defines_them(
    name: str, content: bytes, words: str, tmp_path: Path
) -> None:
    (path := tmp_path / name).write_bytes(content)
    error = refusal(inspect_file(path))
    assert error is not None
    assert words in error.message
    assert error.remedy
    assert "--columns QUESTION=prompt,ANSWER=response" in error.remedy


@pytest.mark.parametrize(
    "content",
    [
        b'{"promt": "Hi", "respnse": "Hello"}\n',
        b'{"prompt": "Hi", "extra": 1}\n',
        b'{"version": 1, "by": "x"}\n{"text_a": "Hi", "text_b": "Hello"}\n',
        b'{"a": "Hi"}\n',
        b"oops\n",
    ],
)
def test_a_line_at_fault_is_not_called_a_file_of_unknown_names(content: bytes, tmp_path: Path) -> None:
    (path := tmp_path / "rows.jsonl").write_bytes(content)
    assert inspect_file(path).training.advice is None


def test_few_rows_of_another_form_are_named_in_their_lines_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(pair() + b"\n" + b"oops\n" * 3 + b'{"question": "Hi", "answer": "Hello"}\n')
    report = inspect_file(path).training
    assert report.advice is None
    assert "the question and answer form" in report.errors[-1].reason


@pytest.mark.parametrize(("role", "form"), [("manager", ""), ("usr", ""), ("human", "ShareGPT")])
def test_role_that_no_program_gives_is_a_mistake_and_no_form(role: str, form: str, tmp_path: Path) -> None:
    """A conversion would leave such rows out."""
    turns = [{"role": role, "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"messages": turns}) + "\n")
    report = inspect_file(path).training
    assert report.errors[0].code == "ROW_ROLE_UNKNOWN"
    assert ("ShareGPT" in report.errors[0].reason, report.advice is not None) == (bool(form), bool(form))


def test_row_inside_of_a_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"id": {"a": 1}, "data": ROW}))
    [error] = inspect_file(path).training.errors
    assert (error.code, error.reason.partition("; ")[2]) == (
        "ROW_FIELD_MISSING",
        "a row is inside `data`: write it without this key around it",
    )


def test_mark_in_the_middle_of_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(pair() + b"\n\xef\xbb\xbf" + pair() + b"\n")
    [error] = inspect_file(path).training.errors
    assert (error.line, error.code) == (2, "ROW_NOT_JSON")
    assert "byte order mark" in error.reason


@pytest.mark.parametrize("number", range(len(READABLE) + len(UNREADABLE)))
def test_each_sample_is_a_row_or_named_by_its_form(number: int, tmp_path: Path) -> None:
    form, row, _ = [*READABLE, *UNREADABLE][number]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    report = inspect_file(path).training
    # Rows with images, and a question without an answer, are in a form that is read; the code says what is wrong.
    assert report.rows or form is None or report.forms == {form: 1}, report.errors


TALK = {"talk": [{"who": "ann", "says": "Hi"}, {"who": "bob", "says": "Hello"}]}
TASK = {"task": "Sum", "done": "3"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("talks.jsonl", json.dumps(TALK) + "\n", "has rows with names that Mens does not know"),
        ("talks.json", json.dumps([TALK]), "is one JSON array"),
        ("tasks.jsonl", json.dumps(TASK) + "\n", "has rows with the keys `task`, `done`"),
        ("tasks.jsonl", json.dumps({"conversations": [{"from": "human", "value": "Hi"}]}), "ShareGPT's form"),
    ],
)
def test_description_of_llama_factory_next_to_the_file_is_named(
    name: str, content: str, words: str, tmp_path: Path
) -> None:
    (path := tmp_path / name).write_text(content)
    (info := tmp_path / "dataset_info.json").write_text(
        json.dumps({"talks": {}, "x": {"file_name": "data/tasks.jsonl"}})
    )
    error = refusal(inspect_file(path))
    assert error is not None
    assert words in error.message
    assert error.remedy
    assert f"`{CONVERT} --dataset-info {info}`" in error.remedy


@pytest.mark.parametrize("info", ['{"other": {"file_name": "other.json"}}', "[]", "{", '{"features": {}}', None])
def test_other_description_is_not_named_but_its_option_is(info: str | None, tmp_path: Path) -> None:
    (path := tmp_path / "tasks.jsonl").write_text(json.dumps(TASK) + "\n")
    if info:
        (tmp_path / "dataset_info.json").write_text(info)
    error = refusal(inspect_file(path))
    assert error is not None
    assert error.remedy
    assert "--columns" in error.remedy
    assert "LLaMA-Factory" in error.remedy and "--dataset-info dataset_info.json" in error.remedy


def test_line_at_fault_of_a_described_file_and_preferences_keep_their_own_remedy(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text(json.dumps({"rows": {}}))
    path = tmp_path / "rows.jsonl"
    path.write_bytes(pair() + b"\noops\n")
    assert inspect_file(path).training.advice is None
    path.write_text(json.dumps({"prompt": "Hi", "chosen": "Hello", "rejected": "No"}))
    advice = inspect_file(path).training.advice
    assert advice is not None
    assert "--method dpo" in advice.remedy


def folder(path: Path, **files: str) -> Path:
    for name, content in files.items():
        file = path / name.replace("__", "/").replace("_DOT_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return path


@pytest.mark.parametrize(
    ("files", "finding", "command"),
    [
        ({"state_DOT_json": "{}", "data_DOT_arrow": ""}, "is a folder that `datasets` has saved", CONVERT),
        (
            {"dataset_dict_DOT_json": '{"splits": ["test", "train"]}', "train__state_DOT_json": "{}"},
            "is a folder that `datasets` has saved, with the splits `test`, `train`",
            f"{CONVERT} --split train",
        ),
        ({"data__0000_DOT_parquet": "", "README_DOT_md": ""}, "is a folder of Parquet files", CONVERT),
        (
            {"data__a-0_DOT_parquet": "", "data__b-0_DOT_parquet": ""},
            "is a folder of Parquet files, with the splits `a`, `b`",
            f"{CONVERT} --split a",
        ),
        ({"rows_DOT_jsonl": "", "notes_DOT_txt": ""}, "is a folder that contains `rows.jsonl`", "Name one file of it"),
        ({"notes_DOT_txt": "", "_DOT_cache__a_DOT_parquet": ""}, "none of the forms that Mens knows", "JSONL file"),
        ({"dataset_dict_DOT_json": "{", "a__b__c__d_DOT_parquet": ""}, "none of the forms that Mens knows", CONVERT),
    ],
)
def test_folder_is_recognised_by_its_files(files: dict[str, str], finding: str, command: str, tmp_path: Path) -> None:
    advice = advise_on_folder(folder(tmp_path / "data", **files))
    assert finding in advice.finding
    assert command in advice.remedy
