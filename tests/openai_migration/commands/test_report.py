"""``mens migrate openai report``: one page from any of the steps, offline, in which no text of an answer becomes
markup.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from cli.main import app
from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.folder import Archive, make_private, write_json
from openai_migration.gate.answers import Candidate, NewAnswer, answers_file, body_for
from openai_migration.gate.compare import make_receipt
from openai_migration.gate.recorded import recorded_prompts
from openai_migration.receipts import write_receipt
from openai_migration.report.facts import collect
from shared.hashing import digest_json
from tests.support.fake_openai import KEY, NAMELESS, TUNED, FakeOpenAI, ServedOpenAI, serve_fake_openai
from tests.support.recorded_archive import EXACT, PROJECT, completion, record_archive, with_eval, with_rows

HOSTILE = "</pre><script>alert('x')</script><img src=http://evil.example/x onerror=alert(1)>{{ 7123 * 7 }}\x00&amp;"
CANDIDATE = Candidate("helper", "helper@1")


class Page(HTMLParser):
    """Tags with their attributes, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def report(archive: Path, *options: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["migrate", "openai", "report", str(archive), *options])
    assert result.exit_code == code, result.output
    return result.output


def page_of(archive: Path) -> Page:
    report(archive)
    return Page((archive / "report.html").read_text())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive on which all steps but the first and the training were done, with hostile text wherever a model or a caller can put some."""
    fake = FakeOpenAI()
    with serve_fake_openai(fake) as url:
        openai = ServedOpenAI(fake, url)
        with_rows(openai, 30)
        with_eval(openai, 5, {**EXACT, "name": HOSTILE})
        fake.complete = lambda request: f"{HOSTILE} {request['messages'][-1]['content']}"
        contents = record_archive(openai, tmp_path_factory.mktemp("recorded") / "a", samples=1, control=True)
    folder = contents.folder
    converted = CliRunner().invoke(app, ["migrate", "openai", "convert", str(folder)])
    assert converted.exit_code == 0, repr(converted.exception)
    make_private(folder / "gate", folder)
    answers = [
        NewAnswer(digest_json(body_for(prompt, CANDIDATE)), 200, CANDIDATE.served, "", completion(f"new {HOSTILE}"))
        for prompt in recorded_prompts(folder, PROJECT, TUNED)
    ]
    (folder / answers_file(TUNED)).write_bytes(b"".join(msgspec.json.encode(answer) + b"\n" for answer in answers))
    write_receipt(folder, make_receipt(ArchiveContents(folder), PROJECT, TUNED, CANDIDATE, "http://mens"))
    make_private(folder / "switch", folder)
    switched = {"alias": "support", "adapter": "helper@1", "override_reason": HOSTILE, "switched_at": "today"}
    write_json(folder / "switch" / f"{answers_file(TUNED)[5:-14]}.json", switched)
    return folder


@pytest.fixture
def whole(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, and OpenAI's key in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return shutil.copytree(recorded, tmp_path / "a")


def test_hostile_answers_are_text(whole: Path) -> None:
    page = page_of(whole)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img", "iframe", "link", "object", "form", "base"})
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "<script>alert('x')</script>" in page.text
    assert "{{ 7123 * 7 }}" in page.text
    assert "49861" not in page.text


def test_the_page_needs_nothing_else(whole: Path) -> None:
    page = page_of(whole)
    links = [value for _, attributes in page.tags for name in ("src", "href") if (value := attributes.get(name))]
    assert links
    assert all(link.startswith("#") for link in links)
    policy = next(attributes for tag, attributes in page.tags if attributes.get("http-equiv"))
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert not re.search(r"url\(|@import", (whole / "report.html").read_text())


def test_it_is_made_without_a_network(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.delenv("OPENAI_API_KEY")
    report(whole)


def test_it_says_what_was_kept_lost_and_proven(whole: Path) -> None:
    text = " ".join(page_of(whole).text.split())
    assert "OpenAI's content of file-train is not in the archive" in text
    assert "valid.jsonl" in text
    assert "not decided: too few answers to compare" in text
    assert "The name stands for the alias support (helper@1) since today. Without a passed gate:" in text
    assert "403 invalid_request_error" in text
    for said in ("Moderation", "Mens has no batch API", "Images and audio", "1 October 2027", "14 October 2027"):
        assert said in text
    assert "not yet" in text, "no successor was trained by the step"
    assert (whole / "report.html").stat().st_mode & 0o777 == 0o600


def test_answers_stand_side_by_side_those_that_differ_most_first(whole: Path) -> None:
    facts = collect(whole, date(2026, 12, 1), samples=6)
    shown = next(model.samples for model in facts.models if model.name == TUNED)
    assert len(shown) == 6
    assert all(sample.recorded.startswith("</pre>") and sample.control and sample.successor for sample in shown)
    alike = [sample.alike or 0.0 for sample in shown[:3]]
    assert alike == sorted(alike)
    assert not collect(whole, date(2026, 12, 1), samples=0).models[0].samples


def test_days_are_counted_from_the_models_own_date(whole: Path) -> None:
    models = {model.name: model for model in collect(whole, date(2027, 1, 20), 0).models}
    assert (models[TUNED].days_left, models[TUNED].date_from) == (12, "shutdown_date of the model")
    assert models[NAMELESS].days_left == -6


def test_models_that_end_first_are_first_with_their_next_steps(whole: Path) -> None:
    assert ArchiveContents(whole).last_models(PROJECT) == [NAMELESS, TUNED], "by the dates, not by the names"
    summary = page_of(whole).text.partition("what ends at OpenAI")[0]
    assert re.search(rf"{re.escape(NAMELESS)}.*\brecord\s+{re.escape(TUNED)}.*\bto support\s+none", summary, re.DOTALL)


def test_an_inventory_alone_is_enough(openai: ServedOpenAI, tmp_path: Path) -> None:
    CliRunner().invoke(app, ["migrate", "openai", "inventory", str(tmp_path / "a")])
    text = " ".join(page_of(tmp_path / "a").text.split())
    assert TUNED in text
    assert NAMELESS in text
    assert "cannot be compared: nothing was recorded" in text
    assert "No rows were converted" in text


def test_an_empty_archive_has_a_page_too(tmp_path: Path) -> None:
    with Archive(tmp_path / "a"):
        pass
    assert "No tuned model is known." in page_of(tmp_path / "a").text


def test_another_folder_and_a_broken_file_are_said(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    result = CliRunner().invoke(app, ["migrate", "openai", "report", str(tmp_path / "other")])
    assert "ARCHIVE_INVALID" in str(result.exception)
    (whole / "convert-report.json").write_text("{")
    result = CliRunner().invoke(app, ["migrate", "openai", "report", str(whole)])
    assert "convert-report.json cannot be read" in str(result.exception)


def test_json_dry_run_and_another_place(whole: Path, tmp_path: Path) -> None:
    output = report(whole, "--dry-run")
    assert "not yet: inventory, train" in output
    assert not (whole / "report.html").exists()
    facts = json.loads(CliRunner().invoke(app, ["migrate", "openai", "report", str(whole), "--json"]).stdout)
    assert {model["name"] for model in facts["models"]} == {TUNED, NAMELESS}
    report(whole, "--output", str(tmp_path / "for-the-board.html"), "--samples", "0")
    page = (tmp_path / "for-the-board.html").read_text()
    assert "Answers side by side" not in page
    assert KEY not in page
