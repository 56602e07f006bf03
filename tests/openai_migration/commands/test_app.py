"""``mens migrate openai``: what its steps print and write, what they never send, and where the key never appears."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import openai_migration.commands.offline
from cli.main import app
from shared.errors import Code, MensError
from tests.support.fake_openai import ADMIN_KEY, KEY, NAMELESS, OTHER_KEY, TUNED, ServedOpenAI


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["migrate", "openai", *arguments])


def mens(*arguments: str, code: int = 0) -> str:
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    return result.output


def test_inventory_is_sorted_by_what_ends_first(openai: ServedOpenAI, here: Path) -> None:
    lines = mens("inventory", "a").splitlines()
    assert [line.split("\t")[2] for line in lines[:5]] == [
        "OpenAI's evals",
        "OpenAI's new fine-tuning jobs",
        NAMELESS,
        f"{TUNED}:ckpt-step-2",
        TUNED,
    ]
    assert (
        "OPENAI_API_KEY: jobs: 1 failed, 2 succeeded; files: 2 fine-tune, 2 fine-tune-results, 1 vision; 3 evals"
        in lines[5]
    )
    written = json.loads((here / "a" / "inventory.json").read_bytes())
    model = next(model for model in written["projects"][0]["models"] if model["name"] == TUNED)
    assert model["jobs"] == ["ftjob-new"]
    assert (model["ends_on"], model["date_from"]) == ("2027-02-01", "shutdown_date of the model")
    # An inventory is not kept for the export, which lists everything again.
    assert not (here / "a" / "raw").exists()


def test_inventory_of_two_projects_continues_without_the_one_that_fails(
    openai: ServedOpenAI, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECOND", OTHER_KEY)
    monkeypatch.setenv("REVOKED", "sk-proj-revoked")
    variables = [f"--key-env={name}" for name in ("REVOKED", "OPENAI_API_KEY", "SECOND")]
    output = mens("inventory", "a", *variables, code=1)
    assert "ft:gpt-4o-2024-08-06:acme:support:ZzYyXx99" in output
    assert "REVOKED: OPENAI_KEY_INVALID" in output
    projects = json.loads((here / "a" / "inventory.json").read_bytes())["projects"]
    assert [project["project"] for project in projects] == ["OPENAI_API_KEY", "SECOND"]


def test_inventory_says_what_was_requested_lately_with_an_admins_key(
    openai: ServedOpenAI, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ADMIN_KEY", ADMIN_KEY)
    mens("inventory", "a", "--usage-key-env", "OPENAI_ADMIN_KEY")
    models = json.loads((here / "a" / "inventory.json").read_bytes())["projects"][0]["models"]
    assert {model["name"]: model["requests"] for model in models} == {TUNED: 6, NAMELESS: 0, f"{TUNED}:ckpt-step-2": 0}
    refused = invoke("inventory", "a", "--usage-key-env", "OPENAI_API_KEY").exception
    assert isinstance(refused, MensError)
    assert "Set OPENAI_API_KEY to an admin key" in str(refused)


def test_inventory_says_what_was_not_listed(openai: ServedOpenAI) -> None:
    openai.fake.evals_end = 410
    assert "not listed: evals: 410 invalid_request_error The Evals API has been shut down." in mens("inventory", "a")


def test_a_model_that_is_gone_is_known_from_its_job(openai: ServedOpenAI, here: Path) -> None:
    models = openai.fake.projects[KEY].lists["models"]
    models[:] = [model for model in models if model["id"] != TUNED]
    mens("inventory", "a")
    written = json.loads((here / "a" / "inventory.json").read_bytes())["projects"][0]["models"]
    assert {model["name"]: model["is_listed"] for model in written}[TUNED] is False


def test_export_says_what_the_archive_holds_and_what_was_refused(openai: ServedOpenAI) -> None:
    output = mens("export", "a")
    assert "3 evals, 2 eval runs, 7 eval output items, 3 tuned models, 3 jobs" in output
    assert (
        "refused: files/file-train/content: 403 invalid_request_error Not allowed to download files of purpose: fine-tune"
        in output
    )
    assert "as confidential as your training data" in output


def test_export_follows_an_inventory_in_the_same_folder(openai: ServedOpenAI, here: Path) -> None:
    mens("inventory", "a")
    mens("export", "a", "--only", "evals")
    assert {path.name for path in (here / "a" / "raw" / "OPENAI_API_KEY").iterdir()} == {"evals"}


def test_export_of_an_unfinished_project_fails_and_keeps_the_others(
    openai: ServedOpenAI, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REVOKED", "sk-proj-revoked")
    output = mens("export", "a", "--key-env", "REVOKED", "--key-env", "OPENAI_API_KEY", code=1)
    assert "REVOKED is not complete. OPENAI_KEY_INVALID" in output
    assert (here / "a/raw/OPENAI_API_KEY/jobs/page-0001.json").is_file()
    assert "of an unfinished export" in mens("export", "a", "--dry-run")


@pytest.mark.parametrize("step", ["inventory", "export"])
def test_a_dry_run_sends_nothing_and_writes_nothing(openai: ServedOpenAI, here: Path, step: str) -> None:
    assert "into a" in mens(step, "a", "--dry-run")
    assert not openai.fake.requests
    assert not (here / "a").exists()


def test_a_dry_run_says_what_an_archive_has(openai: ServedOpenAI) -> None:
    mens("export", "a", "--only", "jobs")
    assert "10 responses" in mens("export", "a", "--dry-run")


@pytest.mark.parametrize("step", ["inventory", "export"])
def test_a_key_that_is_missing_is_named_by_its_variable(
    openai: ServedOpenAI, here: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    result = invoke(step, "a")
    assert isinstance(result.exception, MensError)
    assert result.exception.code == Code.OPENAI_KEY_INVALID
    assert "OPENAI_API_KEY is not set" in str(result.exception)
    assert not (here / "a").exists()


def test_the_key_is_in_no_file_no_output_and_no_log(
    openai: ServedOpenAI, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    openai.fake.forbidden_files = {"file-train"}
    output = mens("inventory", "a") + mens("export", "a")
    openai.fake.projects.clear()
    output += mens("export", "b", code=1)
    # Nor is a part of it, as OpenAI quotes keys.
    for part in (KEY, KEY[:8], KEY[-4:]):
        assert part not in output
        assert part not in caplog.text
        for path in here.rglob("*"):
            assert part not in str(path)
            assert not path.is_file() or part.encode() not in path.read_bytes()


def test_help_teaches_the_order_of_steps() -> None:
    text = " ".join(mens("--help").split())
    assert "Start with `mens migrate openai inventory`" in text
    assert "30 November 2026" in text


def test_record_says_what_it_would_send_and_asks_first(openai: ServedOpenAI, here: Path) -> None:
    mens("export", "a")
    openai.fake.requests.clear()
    declined = CliRunner().invoke(
        app, ["migrate", "openai", "record", "a", "--limit", "2", "--price-in", "3", "--price-out", "12"], input="n\n"
    )
    assert declined.exit_code == 1
    assert f"{TUNED}: 2 prompts" in declined.output
    assert "8 requests will be sent: about" in declined.output
    assert "at your prices, at most about 0.2" in declined.output
    assert not openai.fake.requests


def test_record_needs_no_key_to_say_what_it_would_send(
    openai: ServedOpenAI, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mens("export", "a")
    monkeypatch.delenv("OPENAI_API_KEY")
    assert "requests will be sent" in mens("record", "a", "--dry-run")
    assert not (here / "a" / "golden").exists()


def test_record_writes_answers_and_has_nothing_to_do_afterwards(openai: ServedOpenAI, here: Path) -> None:
    mens("export", "a")
    output = mens("record", "a", "--model", TUNED, "--limit", "2", "--yes")
    assert "4 answers, 56 tokens; 0 recorded earlier; 0 refused" in output
    (written,) = (here / "a/golden/OPENAI_API_KEY").iterdir()
    content = written.read_bytes()
    # As if the run had been killed after its last answer.
    written.unlink()
    assert "0 requests will be sent" in mens("record", "a", "--model", TUNED, "--limit", "2")
    assert written.read_bytes() == content
    assert KEY not in "".join(path.read_text() for path in (here / "a").rglob("*") if path.is_file())


def test_record_of_a_project_that_was_not_exported_is_refused(openai: ServedOpenAI) -> None:
    mens("export", "a")
    result = invoke("record", "a", "--key-env", "OTHER", "--yes")
    assert "has no project OTHER; it has OPENAI_API_KEY" in str(result.exception)


def test_convert_accounts_for_every_line_and_its_files_pass_data_check(openai: ServedOpenAI, here: Path) -> None:
    mens("export", "a")
    output = mens("convert", "a")
    assert "OPENAI_API_KEY train.jsonl: missing; give its original (100 bytes): --original PATH" in output
    assert "OPENAI_API_KEY valid.jsonl: 4 lines: 4 kept, 0 changed, 0 dropped" in output
    checked = CliRunner().invoke(app, ["data", "check", "a/data/OPENAI_API_KEY/file-valid.jsonl"])
    assert checked.exit_code == 0


def test_convert_refuses_to_lose_images_until_it_is_allowed_to(openai: ServedOpenAI, here: Path) -> None:
    mens("export", "a", "--only", "jobs")
    image = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
    rows = [
        [{"role": "user", "content": [image] if n < 7 else "Q"}, {"role": "assistant", "content": "A"}]
        for n in range(100)
    ]
    (here / "mine.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    output = mens("convert", "a", "--original", "mine.jsonl", code=1)
    assert "dropped: image: 7 (line 1, 2, 3, 4, 5, …)" in output
    assert "not written, because too many rows have images: mine.jsonl. Use --allow-image-loss" in output
    assert not (here / "a/data/originals/mine.jsonl").exists()
    mens("convert", "a", "--original", "mine.jsonl", "--allow-image-loss")
    assert (here / "a/data/originals/mine.jsonl").read_text().count("\n") == 93


def test_convert_needs_no_network_no_key_and_is_repeatable(
    openai: ServedOpenAI, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mens("export", "a")
    monkeypatch.delenv("OPENAI_API_KEY")
    openai.fake.requests.clear()
    assert "to data/OPENAI_API_KEY/file-valid.jsonl" in mens("convert", "a", "--dry-run")
    assert not (here / "a" / "data").exists()
    mens("convert", "a")
    first = {path: path.read_bytes() for path in (here / "a" / "data").rglob("*.jsonl")}
    mens("convert", "a")
    assert first == {path: path.read_bytes() for path in (here / "a" / "data").rglob("*.jsonl")}
    assert not openai.fake.requests


def test_convert_says_that_a_process_was_killed(
    openai: ServedOpenAI, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(*_: object) -> None:
        raise BrokenProcessPool

    mens("export", "a", "--only", "jobs")
    monkeypatch.setattr(openai_migration.commands.offline, "convert_files", convert)
    assert "A process that converted a file was killed" in mens("convert", "a", code=1)


def test_convert_takes_personal_data_out(openai: ServedOpenAI, here: Path) -> None:
    mens("export", "a")
    (here / "rules").write_text("Answer => (removed)\n")
    assert "changed: redacted: 4" in mens("convert", "a", "--redact", "rules")
    assert "Answer" not in (here / "a/data/OPENAI_API_KEY/file-valid.jsonl").read_text()


def test_convert_wants_an_archive(here: Path) -> None:
    (here / "letters").mkdir()
    result = invoke("convert", "letters")
    assert isinstance(result.exception, MensError)
    assert result.exception.code == Code.ARCHIVE_INVALID


def test_scan_names_places_with_advice(here: Path) -> None:
    (here / "src").mkdir()
    (here / "src" / "app.py").write_text(f'ask(model="{TUNED}")\nclient.moderations.create()\n')
    output = mens("scan", "src")
    assert (
        f'tuned model (1): keep the name: `switch` maps it to the successor; until then it is unknown\n  src/app.py:1: ask(model="{TUNED}")'
        in output
    )
    assert "moderation (1): not available" in output
    assert "2 findings in 1 file" in output
    first = json.loads(mens("scan", "src", "--json").splitlines()[0])
    assert (first["path"], first["line"], first["kind"]) == ("src/app.py", 1, "tuned model")


def test_nothing_but_the_command_lines_own_packages_is_needed(here: Path) -> None:
    others = [
        "api",
        "sqlalchemy",
        "alembic",
        "celery",
        "redis",
        "fastapi",
        "huggingface_hub",
        "torch",
        "transformers",
        "vllm",
        "numpy",
        "safetensors",
    ]
    program = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {others!r}: raise ImportError(name)
sys.meta_path.insert(0, Blocked())
from cli.lazy_commands import load
from cli.main import PLACES, app
commands = [load(place) for place in PLACES]
app(["migrate", "openai", "export", "a", "--dry-run"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "would fetch evals" in done.stdout


def test_help_lists_the_steps_in_the_order_of_their_use() -> None:
    listed = re.findall(r"^│ (\w+)  ", CliRunner().invoke(app, ["migrate", "openai", "--help"]).output, re.MULTILINE)
    steps = ["inventory", "export", "record", "import", "convert", "scan", "plan", "train", "gate", "switch", "report"]
    assert listed == steps
