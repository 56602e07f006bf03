"""``mens migrate openai import``: files become an archive that every later step accepts, or are refused with their
lines.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from cli.main import app
from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.folder import make_private
from openai_migration.gate.answers import Candidate, NewAnswer, answers_file, body_for
from openai_migration.gate.compare import make_receipt
from openai_migration.gate.recorded import recorded_models, recorded_prompts
from openai_migration.local_files.importing import PROJECT
from openai_migration.receipts import write_receipt
from openai_migration.successors.contracts import ConvertedModel, tuned_models
from shared.errors import MensError
from shared.hashing import digest_json
from shared.statistics.paired import Status
from tests.support.fake_openai import TUNED, chat_line
from tests.support.recorded_archive import EXACT, completion, right_answer

CANDIDATE = Candidate("helper", "helper@1")


def mens(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["migrate", "openai", *arguments])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    error = result.exception
    return f"{result.output}\n{error.code} {error}" if isinstance(error, MensError) else result.output


def answer_line(number: int, **more: object) -> str:
    request = {"messages": [{"role": "user", "content": f"Question {number}?"}]}
    line = {**request, "answer": f"Answer {number}.", "item": {"expected": f"Answer {number}."}, "scores": {"exact": 1}}
    return json.dumps(line | more) + "\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of what a team has, and no key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    rows = b"".join(chat_line(f"What is the colour of thing {n * 7919}?", f"It is {n}.") for n in range(20))
    Path("train.jsonl").write_bytes(rows)
    Path("valid.jsonl").write_bytes(b"".join(chat_line(f"Question {n}?", f"Answer {n}.") for n in range(100)))
    Path("answers.jsonl").write_text("".join(map(answer_line, range(100))))
    Path("graders.json").write_text(json.dumps([EXACT]))
    return tmp_path


def import_all(*options: str, code: int = 0) -> str:
    given = ["--model", TUNED, "--training", "train.jsonl", "--validation", "valid.jsonl"]
    return mens("import", "a", *given, "--answers", "answers.jsonl", "--graders", "graders.json", *options, code=code)


def test_later_steps_take_what_was_imported(files: Path) -> None:
    output = import_all("--epochs", "4")
    assert "100 prompts with 100 answers, 1 grader" in output
    folder = files / "a"
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()} == {0o600}
    assert "train.jsonl: 20 lines: 20 kept" in mens("convert", "a")
    (model,) = tuned_models(ArchiveContents(folder))
    assert isinstance(model, ConvertedModel)
    assert (model.name, model.rows, model.job["method"]["supervised"]["hyperparameters"]["n_epochs"]) == (TUNED, 20, 4)
    assert model.validation
    assert recorded_models(folder) == {TUNED: PROJECT}
    make_private(folder / "gate", folder)
    answers = [
        NewAnswer(
            digest_json(body_for(prompt, CANDIDATE)), 200, "helper@1", "", completion(right_answer(prompt.request))
        )
        for prompt in recorded_prompts(folder, PROJECT, TUNED)
    ]
    (folder / answers_file(TUNED)).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in answers))
    receipt = make_receipt(ArchiveContents(folder), PROJECT, TUNED, CANDIDATE, "http://mens")
    assert receipt.verdict is Status.PASSED
    assert (receipt.graders[0].agreeing, receipt.graders[0].may_block) == (100, True)
    assert {gate.name for gate in receipt.gates} >= {"eval:imported/exact", "label:exact"}
    write_receipt(folder, receipt)
    assert "done: import, convert, gate; not yet: train, switch" in mens("report", "a")
    page = (folder / "report.html").read_text()
    assert "brought in files by hand" in page
    assert "120 of 120 rows kept" in page
    assert "margin 0.03; largest measured loss 0.000" in page


def test_an_import_can_be_repeated_and_another_model_added(files: Path) -> None:
    import_all()
    import_all()
    other = TUNED.replace("acme", "other")
    mens("import", "a", "--model", other, "--training", "train.jsonl")
    assert ArchiveContents(files / "a").last_models(PROJECT) == sorted([TUNED, other])
    assert len(list(ArchiveContents(files / "a").files(PROJECT, "fine-tune"))) == 2
    assert len(recorded_prompts(files / "a", PROJECT, TUNED)) == 100


def test_completions_samples_and_controls_are_told_apart(files: Path) -> None:
    choices = completion("From choices.")["choices"]
    lines = [
        answer_line(1, answer=None, choices=choices, temperature=0.5, max_tokens=9),
        answer_line(1),
        answer_line(1, model="gpt-4o-mini-2024-07-18", answer="Control."),
    ]
    Path("answers.jsonl").write_text("".join(lines))
    assert "1 prompt with 3 answers" in import_all()
    (prompt,) = recorded_prompts(files / "a", PROJECT, TUNED)
    assert (prompt.answer.text, prompt.answer.finish_reason) == ("From choices.", "stop")
    assert [sample.text for sample in prompt.samples] == ["Answer 1."]
    assert prompt.control
    assert prompt.control.text == "Control."
    assert prompt.sampling == {"temperature": 0.5, "seed": 1337, "max_completion_tokens": 9}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no json\n", "not valid JSON ("),
        ("[]\n", "not a JSON object"),
        (answer_line(1, messages=[]), "`messages` is missing"),
        (answer_line(1, answer=None), "`choices` or `answer` (a string) is missing"),
        (answer_line(1, answer=None, choices=[{}]), "`choices` is not a list"),
        (
            answer_line(1, answer=None, choices=[{"message": {}}]),
            "`choices[0].message` has neither text nor tool calls",
        ),
        (
            answer_line(1, messages=[{"role": "user", "content": "?"}, {"role": "assistant"}]),
            "`messages` ends with an answer",
        ),
        (answer_line(1, model="gpt-4"), "`model` is 'gpt-4', neither ft:"),
        (answer_line(1, item=[1]), "`item` is not an object"),
        (answer_line(1, scores={"exact": "1"}), "`scores` is not an object of numbers"),
    ],
)
def test_a_line_that_is_not_an_answer_is_refused_with_its_number(files: Path, line: str, reason: str) -> None:
    Path("answers.jsonl").write_text(answer_line(0) + line)
    output = import_all(code=1)
    assert "ANSWER_LINE_INVALID" in output
    assert f"line 2: {reason}" in " ".join(output.split())
    assert not (files / "a").exists(), "what is refused leaves no archive behind"


@pytest.mark.parametrize("content", ["", "no json\n", '{"type": "string_check"}', '{"type": "nonsense", "name": "x"}'])
def test_what_is_not_a_grader_is_refused(files: Path, content: str) -> None:
    Path("graders.json").write_text(content)
    assert "GRADER_INVALID" in import_all(code=1)


def test_answers_to_trained_prompts_are_left_out_and_counted(files: Path) -> None:
    trained = answer_line(1, messages=[{"role": "user", "content": "What is the colour of thing 7919?"}])
    Path("answers.jsonl").write_text(answer_line(0) + trained)
    assert "left out: 1 answer to prompts that were trained on" in import_all()
    Path("answers.jsonl").write_text(trained)
    assert "ARCHIVE_INVALID" in import_all(code=1)


def test_the_same_completion_twice_is_one_answer_and_the_same_words_are_said(files: Path) -> None:
    by_id = answer_line(1, answer=None, choices=completion("One.")["choices"], id="chatcmpl-7")
    Path("answers.jsonl").write_text(by_id * 2 + answer_line(2) * 2)
    dry = import_all("--dry-run")
    assert not (files / "a").exists()
    output = import_all()
    for said in (dry, output):
        assert "2 prompts with 3 answers" in said
        assert "left out: 1 line with the id of another line's completion" in said
        assert "1 line without an id, equal to another line, counted as repeated answers" in said
    assert [len(prompt.samples) for prompt in recorded_prompts(files / "a", PROJECT, TUNED)] == [0, 1]


def test_a_name_that_is_not_a_tuned_models_is_refused(files: Path) -> None:
    assert "NAME_INVALID" in mens("import", "a", "--model", "gpt-4o", "--training", "train.jsonl", code=1)
