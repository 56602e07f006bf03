"""``mens data check``: exit code, bad lines with their reasons, figures, and JSON."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.commands.data import check as data_check
from cli.main import app
from shared.datasets.dataset_report import MAX_REPORTED_ERRORS

runner = CliRunner()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    # Not by COLUMNS, which a console may have read before, when its module was imported.
    for console in (data_check.console, data_check.errors):
        monkeypatch.setattr(console, "_width", 200)


def write(path: Path, *rows: dict[str, Any] | bytes) -> str:
    path.write_bytes(b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows))
    return str(path)


def pair(prompt: str, **labels: Any) -> dict[str, Any]:
    return {"prompt": prompt, "response": "Hello", **labels}


def check(*arguments: str) -> tuple[int, str]:
    result = runner.invoke(app, ["data", "check", *arguments])
    return result.exit_code, result.output


def help_of(command: str) -> str:
    return runner.invoke(app, [command, "--help"]).output


def test_good_file_passes(tmp_path: Path) -> None:
    code, output = check(write(tmp_path / "a.jsonl", pair("1"), pair("2", rating=5)))
    assert code == 0
    assert "ok: 2 rows to train on" in output


@pytest.mark.parametrize("lines", [[pair("1")], [b"no json\n"], [pair("1"), pair("1")]])
def test_names_are_printed_as_they_are(tmp_path: Path, lines: list[dict[str, Any] | bytes]) -> None:
    path = write(tmp_path / "[red]:smile: [-b].jsonl", *lines)
    bad = tmp_path / "[-bad]"
    assert "[red]:smile: [-b].jsonl" in check(path, "--quarantine", str(bad))[1]


def test_rows_that_a_job_holds_out_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *(pair(str(number)) for number in range(60)))
    told = "60 rows to train on; a job holds 10 of them out for validation, unless it has --validation"
    assert told in " ".join(check(path)[1].split())
    own = check(path, "--validation", write(tmp_path / "b.jsonl", pair("new")))[1]
    assert "60 rows to train on\n" in own
    assert "kept by the filter" in own and "trained on" not in own, "the validation file is not"
    assert "ok: 1 row to train on" in check(write(tmp_path / "one.jsonl", pair("1")))[1]


def test_bad_lines_are_shown_with_number_code_and_reason(tmp_path: Path) -> None:
    bad = write(tmp_path / "a.jsonl", pair("1"), pair("[bold]2", rating=9), b'{"prompt": "[/x]"}\n')
    code, output = check(bad)
    assert code == 1
    assert "ROW_RATING_RANGE" in output
    assert "rating must be a whole number from 1 to 5" in output
    assert "ROW_FIELD_MISSING" in output
    advice = "not usable: correct the lines above, or skip them with --lenient, here as in mens plan and mens train"
    assert advice in " ".join(output.split())
    assert "--lenient" in help_of("plan")
    assert "--lenient" in help_of("train")


def test_equal_faults_are_one_row_of_the_table(tmp_path: Path) -> None:
    bad = write(tmp_path / "a.jsonl", b"oops\n" * 9, pair("1"), b"oops\n", b"\n", b"oops\n")
    table = [[cell.strip() for cell in line.split("│")] for line in check(bad)[1].splitlines() if "ROW_" in line]
    assert [cells[1:3] for cells in table] == [["1-9, 11, 13", "ROW_NOT_JSON"], ["12", "ROW_BLANK"]]


def test_lenient_skips_bad_lines_and_quarantine_keeps_them(tmp_path: Path) -> None:
    target = tmp_path / "bad.jsonl"
    code, output = check(write(tmp_path / "a.jsonl", pair("1"), b"oops\n"), "--lenient", "--quarantine", str(target))
    assert code == 0
    assert str(target) in output.replace("\n", "")
    assert json.loads(target.read_text()) == {
        "line": 2,
        "code": "ROW_NOT_JSON",
        "field": "",
        "reason": "the line is not JSON: invalid character (byte 0)",
        "text": "oops",
    }


def test_a_strict_check_puts_every_bad_line_into_the_quarantine(tmp_path: Path) -> None:
    """The report shows the first 20; this is where all of them are."""
    target, bad = tmp_path / "bad.jsonl", 3 * MAX_REPORTED_ERRORS
    path = write(tmp_path / "a.jsonl", pair("1"), b"oops\n" * bad, pair("2"))
    code, output = check(path, "--quarantine", str(target), "--json")
    report = json.loads(output)["training"]
    assert (code, report["error_count"], len(report["errors"])) == (1, bad, MAX_REPORTED_ERRORS)
    assert [json.loads(line)["line"] for line in target.read_text().splitlines()] == list(range(2, 2 + bad))
    assert "`mens data check a.jsonl --quarantine BAD` writes the bad lines to BAD" in " ".join(check(path)[1].split())


def test_quarantine_never_overwrites_the_data(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", pair("1"), b"oops\n")
    before = Path(path).read_bytes()
    assert check(path, "--quarantine", path)[0] == 1
    assert Path(path).read_bytes() == before


def test_quarantine_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path, target = write(tmp_path / "a.jsonl", pair("1")), tmp_path / "nowhere" / "bad"
    code, output = check(path, "--quarantine", str(target))
    assert (code, f"--quarantine {target} cannot be written: No such file" in output) == (1, True)


def test_file_without_trainable_rows_fails(tmp_path: Path) -> None:
    code, output = check(write(tmp_path / "a.jsonl", pair("1", rating=1)), "--min-rating", "3")
    assert code == 1
    assert "not usable: DATASET_EMPTY: The training file has no row that can be trained on (valid rows: 1)." in output


def test_an_empty_file_is_called_so_with_code_and_remedy(tmp_path: Path) -> None:
    empty = write(tmp_path / "a.jsonl")
    assert (
        "not usable: DATASET_EMPTY: The training file is empty. Give a file with one row per line." in check(empty)[1]
    )
    code, output = check(empty, "--json")
    error = json.loads(output)["error"]
    assert (code, error["code"], error["param"]) == (1, "DATASET_EMPTY", "data.train_file")
    assert error["message"] == "The training file is empty."
    assert error["remedy"]


def test_leakage_and_duplicates_are_shown(tmp_path: Path) -> None:
    training = write(tmp_path / "a.jsonl", pair("1"), pair("2"), pair("1"))
    code, output = check(training, "--validation", write(tmp_path / "b.jsonl", pair("2")))
    assert code == 0
    assert "exact duplicates: line 3 is the same as line 1" in output
    assert "leakage: validation line 1 is the same as line 2" in output


def test_json_is_json(tmp_path: Path) -> None:
    code, output = check(write(tmp_path / "a.jsonl", pair("1"), b"\n"), "--json")
    report = json.loads(output)
    assert code == 1
    assert report["training"]["errors_by_code"] == {"ROW_BLANK": 1}
    assert report["error"]["code"] == "DATASET_LINE_INVALID"
    assert report["supervision"] is None


def test_json_advice_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "chats.jsonl", {"conversations": [{"from": "human", "value": "a"}]})
    code, output = check(file, "--json")
    remedy = json.loads(output)["training"]["advice"]["remedy"]
    assert code == 1
    assert f"mens data convert {file} " in remedy


def test_category_option_keeps_what_matches(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", pair("1", category="Code"), pair("2", lane="speech"), pair("3"))
    code, output = check(path, "--category", "code", "--category", "SPEECH", "--json")
    report = json.loads(output)
    assert (code, report["training"]["trainable_rows"], report["error"]) == (0, 2, None)


def test_unknown_base_is_named(tmp_path: Path) -> None:
    code, output = check(write(tmp_path / "a.jsonl", pair("1")), "--model", "nobody")
    assert code == 1
    assert "MODEL_NOT_FOUND" in output


def test_base_adds_supervision_figures(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "base")
    code, output = check(write(tmp_path / "a.jsonl", pair("1"), pair("2")), "--model", str(folder))
    assert code == 0, output
    assert "in 2 rows" in output
    code, output = check(write(tmp_path / "a.jsonl", pair("1")), "--model", str(folder), "--json")
    assert json.loads(output)["supervision"]["supervised_tokens"] > 0


def make_tokenizer(folder: Path) -> Path:
    """A folder with a byte tokenizer and a ChatML template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    return folder


def test_validation_file_is_written_with_the_template_too(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "base")
    training, held_out = (
        write(tmp_path / "a.jsonl", pair("1")),
        write(tmp_path / "b.jsonl", pair("2"), pair("3", tools=[{"name": "f"}])),
    )
    options = ("--model", str(folder), "--validation", str(held_out))
    code, output = check(training, *options)
    assert (
        code,
        "validation rows that cannot be written with the base's chat template: 1; the first is line 2: " in output,
    ) == (1, True), output
    assert check(training, *options, "--lenient")[0] == 0


def test_a_template_without_tools_is_the_verdict_and_never_ok(tmp_path: Path) -> None:
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {}}}]
    path, folder = (
        write(tmp_path / "a.jsonl", *[pair(str(n), tools=tools) for n in range(3)]),
        make_tokenizer(tmp_path / "base"),
    )
    for options in ((), ("--lenient",)):
        code, output = check(path, "--model", str(folder), *options)
        text = " ".join(output.split())
        assert (code, "ok:" in text) == (1, False)
        assert text.endswith(
            "This base's chat template does not know tools: choose another base, or write the calls into the content."
        )
    error = json.loads(check(path, "--model", str(folder), "--json")[1])["error"]
    assert (error["code"], "does not know tools" in error["remedy"]) == ("TEMPLATE_UNSUPPORTED", True)


def test_skipping_is_not_advised_where_no_line_is_a_row(tmp_path: Path) -> None:
    output = " ".join(check(write(tmp_path / "a.jsonl", b"oops\n" * 3))[1].split())
    assert "not usable: no line of the file is a row; correct the lines above" in output
    assert "--lenient" not in output


def test_keys_that_are_not_used_are_shown(tmp_path: Path) -> None:
    code, output = check(write(tmp_path / "a.jsonl", pair("1", source="web"), pair("2")))
    assert code == 0
    assert "Keys of rows that are not used: source (1)." in output


def killed(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_large_file_is_read_by_processes_and_a_killed_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.datasets.file_parts._processors", lambda: 2)
    monkeypatch.setattr("shared.datasets.file_parts.PART_BYTES", 100)
    monkeypatch.setattr("shared.datasets.file_parts._SCAN_BYTES", 100)
    path = write(tmp_path / "a.jsonl", *[pair(str(number)) for number in range(40)], pair("7"))
    code, output = check(path, "--json")
    assert (code, json.loads(output)["training"]["duplicates"]["exact_rows"]) == (0, 1)
    monkeypatch.setattr("shared.datasets.report._read_part", killed)
    code, output = check(path)
    assert (code, "was killed" in output) == (1, True)


@pytest.mark.parametrize("command", [["data", "check"], ["plan"], ["train"]])
def test_folder_is_refused_with_its_form_and_the_command_that_converts_it(command: list[str], tmp_path: Path) -> None:
    saved, rows = tmp_path / "saved set", write(tmp_path / "a.jsonl", pair("1"))
    (saved / "train").mkdir(parents=True)
    for arguments in ([str(saved)], [rows, "--validation", str(saved)]):
        (saved / "dataset_dict.json").unlink(missing_ok=True)
        result = runner.invoke(app, [*command, *arguments])
        assert result.exit_code == 1
        assert f"REQUEST_INVALID: {saved} is a folder, and none of the forms that Mens knows." in result.output
        (saved / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
        error = json.loads(runner.invoke(app, [*command, *arguments, "--json"]).output)["error"]
        assert error["message"] == f"{saved} is a folder that `datasets` has saved, with the splits `train`, `test`."
        assert f"`mens data convert '{saved}' -o rows.jsonl --split train`" in error["remedy"]
        assert error["param"] == ("data.train_file" if len(arguments) == 1 else "data.validation_file")
