"""``mens data convert``: its output, exit codes and JSON; and the checks that recommend it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.support.foreign_rows import HI, said

runner = CliRunner()
SHAREGPT = {"id": 1, "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}
PREFERENCE = {"prompt": "Hi", "chosen": "Hello", "rejected": "No"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: object) -> tuple[int, str]:
    result = runner.invoke(app, ["data", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_file_that_check_refuses_is_converted_as_it_says_and_then_passes(tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", SHAREGPT, {"title": "x"}), tmp_path / "rows.jsonl"
    code, text = run("check", source)
    assert code == 1
    assert "in.jsonl has 1 row in ShareGPT's form" in text
    assert text.endswith(
        f"not usable in this form. Convert it: `mens data convert {source} -o rows.jsonl` writes rows for "
        "training and accounts for each that it leaves out."
    )
    assert "--lenient" not in text
    code, text = run("convert", source, "-o", output, "--report", tmp_path / "account.jsonl")
    assert code == 0
    assert "0 unchanged, 1 changed, 1 dropped" in text
    assert "dropped: form_unknown: 1 (line 2): unknown form; name the columns: --columns" in text
    assert "fields that were dropped: id (1)" in text
    assert json.loads(output.read_text()) == {"messages": HI}
    assert len((tmp_path / "account.jsonl").read_text().splitlines()) == 2
    code, text = run("check", output)
    assert (code, "ok: 1 row to train on" in text) == (0, True)


def test_strict_writes_nothing_if_a_row_is_dropped(tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", SHAREGPT, {"title": "x"}), tmp_path / "rows.jsonl"
    code, text = run("convert", source, "-o", output, "--strict")
    assert (code, output.exists()) == (1, False)
    assert "1 row of 2 would be dropped; the most common reason (1) is form_unknown" in text


def test_preferences_need_the_option(tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", PREFERENCE), tmp_path / "rows.jsonl"
    assert "Set method.type to dpo" in run("check", source, "--method", "supervised")[1]
    code, text = run("convert", source, "-o", output)
    assert (code, "--as-supervised takes the chosen answers" in text) == (1, True)
    assert "airs are for `mens train --method dpo`" in text
    assert "ok: 1 pair to train on" in run("check", source)[1]
    assert run("convert", source, "-o", output, "--as-supervised")[0] == 0
    assert json.loads(output.read_text()) == {"messages": HI}


def test_rated_answers_are_kept_and_pairs_divided_with_the_option(tmp_path: Path) -> None:
    rated = {"prompt": "Hi", "completion": "No", "label": False}
    foreign = {**SHAREGPT, "label": True}
    openai = {
        "input": {"messages": [HI[0]]},
        "preferred_output": [HI[1]],
        "non_preferred_output": [{"role": "assistant", "content": "Go away"}],
    }
    pair = {"prompt": "Hi?", "chosen": "Hello", "rejected": "No"}
    source = write(
        tmp_path / "in.jsonl", rated, foreign, openai, pair, {"messages": HI}, {"prompt": "Hi", "response": "Hi"}
    )
    output = tmp_path / "rows.jsonl"
    code, text = run("convert", source, "-o", output, "--as-rated")
    assert (code, "1 unchanged, 3 changed, 2 dropped" in text) == (0, True)
    assert "dropped: not_rated: 2 (line 5, 6)" in text
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert rows[0] == rated
    assert [row["label"] for row in rows] == [False, True, True, False, True, False]
    assert [row["messages"][-1]["content"] for row in rows[1:]] == ["Hello", "Hello", "Go away", "Hello", "No"]
    code, text = run("check", output, "--method", "kto")
    assert (code, "rated good, rated bad" in text, "ok: 6 rows to train on" in text) == (0, True, True)
    assert "so they are checked for --method kto" in run("check", write(tmp_path / "one.jsonl", rated))[1]
    code, text = run("check", write(tmp_path / "chats.jsonl", *rows[1:]))
    assert (code, "so they are checked for --method kto" in text) == (0, True)
    assert run("convert", source, "-o", output, "--as-rated", "--as-supervised")[0] != 0


@pytest.mark.parametrize("labels", [("true", "false"), ("False", "True"), ("1", "0")])
def test_the_next_step_after_as_rated_is_right(labels: tuple[str, str], tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "rated.jsonl"
    source.write_text(f"prompt,completion,label\nHi,Hello,{labels[0]}\nHi,No,{labels[1]}\n")
    code, text = run("convert", source, "-o", output, "--as-rated")
    assert (code, text.endswith(f"next: `mens data check {output}`")) == (0, True)
    code, text = run("check", output)
    assert (code, "so they are checked for --method kto" in text) == (0, True)


def test_a_table_loses_its_bad_answers_without_the_option(tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "rows.jsonl"
    source.write_text("prompt,completion,label\nHi,Hello,true\nHi,No,false\n")
    assert "dropped: label_false: 1 (line 3)" in run("convert", source, "-o", output)[1]
    assert json.loads(output.read_text()) == {"messages": HI}


def test_check_counts_only_ratings_that_pass_the_filter(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "completion": "Yes", "label": n < 30, "rating": 5 if n < 30 else 1} for n in range(40)]
    source = write(tmp_path / "in.jsonl", *rows)
    code, text = run("check", source, "--min-rating", "3")
    assert (code, "All 30 answers of the file that pass the filter are rated good" in text) == (1, True)
    assert run("check", source, "--min-rating", "0")[0] == 0


def test_json_has_the_account_and_the_error(tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", SHAREGPT, PREFERENCE), tmp_path / "rows.jsonl"
    code, text = run("convert", source, "-o", output, "--json")
    report = json.loads(text)
    assert (code, report["lines"], report["changed"], report["drops"]) == (0, 2, 1, {"preference": 1})
    assert (report["forms"], report["file_form"]) == ({"sharegpt": 1, "preference": 1}, "JSONL")
    code, text = run("convert", write(tmp_path / "b.jsonl", PREFERENCE), "-o", output, "--json")
    error = json.loads(text)["error"]
    assert (code, error["code"], error["details"]["drops"]) == (1, "DATASET_EMPTY", {"preference": 1})
    assert error["remedy"]


@pytest.mark.parametrize("option", ["-o", "--report"])
def test_input_is_never_overwritten(option: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", SHAREGPT)
    before = source.read_bytes()
    others = ["-o", tmp_path / "rows.jsonl"] if option == "--report" else []
    code, text = run("convert", source, option, source, *others)
    assert (code, "would overwrite the input" in text, source.read_bytes()) == (1, True, before)


def test_columns_of_a_table(tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "rows.jsonl"
    source.write_text("Frage;Antwort;Nr\nHi;Hello;1\n")
    code, _ = run("convert", source, "-o", output, "--columns", "Frage=prompt, Antwort=response")
    assert (code, json.loads(output.read_text())) == (0, {"messages": HI})
    code, text = run("convert", source, "-o", output, "--columns", "Frage=Prompt")
    assert (code, "NAME is one of prompt, response" in text) == (1, True)


def test_table_with_other_names_is_read_as_one_and_its_columns_are_named(tmp_path: Path) -> None:
    source, output = tmp_path / "orders.csv", tmp_path / "rows.jsonl"
    source.write_text('Waiter says,Ticket\n"two beers, please",2x beer\nsoup,1x soup\n')
    code, text = run("convert", source, "-o", output)
    assert (code, "table, 2 rows (unknown 2)" in text) == (1, True)
    assert "form_unknown, for rows with the columns `Waiter says`, `Ticket`" in text
    code, text = run("convert", source, "-o", output, "--columns", "waiter=prompt,Ticket=response")
    assert (code, output.exists()) == (1, False)
    assert "--columns names the column `waiter`, but" in text
    assert "has the columns `Waiter says`, `Ticket`" in text
    assert run("convert", source, "-o", output, "--columns", "Waiter says=prompt,Ticket=response")[0] == 0
    assert len(output.read_text().splitlines()) == 2


def test_name_of_a_column_that_only_some_rows_have_is_accepted(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", {"q": "Hi", "a": "Hello"}, {"q": "Hi", "a": "Yes", "s": "Be brief."})
    code, text = run("convert", source, "-o", tmp_path / "rows.jsonl", "--columns", "q=prompt,a=response,s=system")
    assert (code, "2 rows written" in text) == (0, True)


@pytest.mark.parametrize("columns", ["", "question=prompt,answer=response"])
def test_empty_cell_is_named_by_what_is_missing(columns: str, tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("question,answer\na,b\nc,\n,d\n")
    _, text = run("convert", source, "-o", tmp_path / "rows.jsonl", *(["--columns", columns] if columns else []))
    assert "ROW_ANSWER_EMPTY: 1 (line 3)" in text
    assert "ROW_CONTENT_EMPTY: 1 (line 4)" in text


def test_dataset_info_of_llama_factory(tmp_path: Path) -> None:
    entries = {
        "talks": {"file_name": "talks.json", "formatting": "sharegpt", "columns": {"messages": "talk", "system": "sys"},
                  "tags": {"role_tag": "who", "content_tag": "says", "user_tag": "ann", "assistant_tag": "bob"}},
        "tasks": {"file_name": "tasks.json", "columns": {"prompt": "task", "response": "done", "query": "about"}},
        "pairs": {"file_name": "pairs.json", "ranking": True, "columns": {"prompt": "q", "chosen": "good", "rejected": "bad"}},
        "hub": {"hf_hub_url": "somebody/something"},
    }  # fmt: skip
    info, output = tmp_path / "dataset_info.json", tmp_path / "rows.jsonl"
    info.write_text(json.dumps(entries))
    talk = {"sys": "Short.", "talk": [{"who": "ann", "says": "Hi"}, {"who": "bob", "says": "Hello"}]}
    rows = {
        "talks.json": (talk, said("Hi", "Hello", system="Short.")),
        "tasks.json": ({"task": "Sum", "about": "1 2", "done": "3"}, said("Sum\n1 2", "3")),
        "pairs.json": ({"q": "Hi", "good": "Hello", "bad": "No"}, HI),
    }
    for name, (row, turns) in rows.items():
        (tmp_path / name).write_text(json.dumps([row]))
        assert f"-o rows.jsonl --dataset-info {info}`" in run("check", tmp_path / name)[1]
        code, text = run("convert", tmp_path / name, "-o", output, "--dataset-info", info, "--as-supervised")
        assert code == 0, text
        assert json.loads(output.read_text()) == {"messages": turns}
    (tmp_path / "other.json").write_text(json.dumps([talk]))
    code, text = run("convert", tmp_path / "other.json", "-o", output, "--dataset-info", info)
    assert (code, "has no entry whose file_name is 'other.json'" in text) == (1, True)


def test_help_names_every_form_and_the_group_both_commands() -> None:
    text = run("convert", "--help")[1]
    assert "sharegpt|alpaca" in text.replace(" ", "").replace("│", "")
    assert "convert" in run("--help")[1]


def test_rows_of_an_array_are_named_by_their_number(tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    source.write_text(json.dumps([SHAREGPT, 5, SHAREGPT, 6]))
    assert "dropped: ROW_NOT_OBJECT: 2 (row 2, 4)" in run("convert", source, "-o", tmp_path / "rows.jsonl")[1]
