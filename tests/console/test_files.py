"""Files and their rows: supervised text, faults and their places, addresses, keyboard, each role; rows are shown as
text only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.console.browser import HOSTILE, PHONE, Visitor, ask, findings
from tests.system.loop import BASE, Installation

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page, Route, StorageState

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


def line(page: Page, number: int) -> Any:
    return page.get_by_role("article", name=re.compile(f"^Line {number}$"))


def test_row_shows_what_the_base_is_trained_on(
    visitor: Visitor, state: StorageState, installation: Installation, faulty: str
) -> None:
    told = installation.call("GET", f"/v1/files/{faulty}/rows", params={"base_model": BASE, "limit": 1})["data"][0]
    learnt = "".join(piece["text"] for piece in told["trained"]["pieces"] if piece["kind"] == "supervised")
    assert learnt.strip() == "On 1 December."
    with visitor.visit(state, hash_=f"#/files/{faulty}") as (page, _):
        first = line(page, 1)
        first.locator("mark.learnt").first.wait_for()
        shown = first.locator("mark.learnt:not(.last)").all_inner_texts()
        assert "".join(shown).strip() == learnt.strip()
        tokens = f"{told['trained']['tokens']} tokens, {told['trained']['supervised_tokens']} supervised"
        expect(first.get_by_text(tokens)).to_be_visible()
        first.get_by_role("button", name="Token ids").click()
        ids = [str(id_) for piece in told["trained"]["pieces"] for id_ in piece["ids"]]
        expect(first.locator(".data-pieces")).to_have_text(
            re.compile(r"^\s*" + r"\s+".join(ids) + r"\s*$"), use_inner_text=True
        )


def test_report_names_faults_and_leads_to_their_lines(visitor: Visitor, state: StorageState, faulty: str) -> None:
    with visitor.visit(state, hash_=f"#/files/{faulty}?length=64") as (page, _):
        report = page.get_by_label("Report")
        report.get_by_text("DATASET_LINE_INVALID").wait_for()
        expect(report.get_by_text("1 exact, 0 near")).to_be_visible()
        report.get_by_role("link", name="5", exact=True).click()
        line(page, 5).get_by_text("ROW_ROLE_UNKNOWN").wait_for()
        page.wait_for_url(lambda url: "line=5" in url)
        expect(page.get_by_role("article")).to_have_count(20)
        tabs = page.get_by_role("navigation", name="Which rows")
        tabs.get_by_role("link", name="errors 2").click()
        line(page, 3).get_by_text("ROW_NOT_JSON").wait_for()
        expect(page.get_by_role("article")).to_have_count(2)
        tabs.get_by_role("link", name="cut").click()
        cut = line(page, 6).locator("s")
        cut.first.wait_for()
        expect(cut.first).to_contain_text("Many lines of an invoice.")
        page.go_back()
        line(page, 3).wait_for()
        page.reload()
        line(page, 3).wait_for()


def test_duplicate_names_the_line_that_it_repeats(visitor: Visitor, state: StorageState, faulty: str) -> None:
    with visitor.visit(state, hash_=f"#/files/{faulty}") as (page, _):
        duplicates = page.get_by_label("Report").locator(".fact", has_text="Duplicates")
        expect(duplicates).to_contain_text("line 4 repeats 1")
        duplicates.get_by_role("link", name="1", exact=True).click()
        page.wait_for_url(lambda url: "line=1" in url)


def test_first_file_is_sent_without_a_terminal(visitor: Visitor, state: StorageState) -> None:
    def none(route: Route) -> None:
        route.fulfill(content_type="application/json", body='{"object": "list", "data": [], "has_more": false}')

    with visitor.visit(state, hash_="#/jobs") as (page, _):
        page.route("**/v1/files?*", none)
        page.get_by_role("navigation", name="Screens").get_by_role("link", name="Data").click()
        empty = page.locator(".empty")
        expect(empty).to_contain_text('{"prompt": "…", "response": "…"}')
        expect(empty).not_to_contain_text("terminal")
        button = page.locator("label.upload")
        new_run = page.evaluate("getComputedStyle(document.querySelector('label.upload')).borderTopStyle")
        assert new_run == "solid"  # it looks like a button
        expect(button.locator("input")).to_have_attribute("accept", ".jsonl,.json,.txt,.csv,.tsv")


def test_file_for_evals_is_shown_and_not_judged_as_training_data(
    visitor: Visitor, state: StorageState, installation: Installation
) -> None:
    row = b'{"item": {"question": "When?", "answer": "Now."}}\n'
    sent = {"data": {"purpose": "evals"}, "files": {"file": ("questions.jsonl", row)}}
    file_id = installation.call("POST", "/v1/files", **sent)["id"]
    with visitor.visit(state, hash_=f"#/files/{file_id}") as (page, watch):
        expect(line(page, 1)).to_contain_text('"answer": "Now."')
        expect(page.get_by_role("heading", name="questions.jsonl")).to_be_visible()
        expect(page.get_by_text("Train on it")).to_have_count(0)
        expect(page.locator(".failure, .reason")).to_have_count(0)
        assert not [request for request in watch.requests if "/report" in request.url]


def test_pages_follow_and_a_line_is_gone_to(visitor: Visitor, state: StorageState, faulty: str) -> None:
    with visitor.visit(state, hash_=f"#/files/{faulty}") as (page, _):
        line(page, 20).wait_for()
        page.get_by_role("link", name="Next rows").click()
        line(page, 21).wait_for()
        page.get_by_label("go to line").fill("44")
        page.keyboard.press("Enter")
        line(page, 44).wait_for()
        expect(page.get_by_role("link", name="Next rows")).to_have_count(0)
        page.get_by_label("go to line").fill("4000")
        page.keyboard.press("Enter")
        page.get_by_text("No further row").wait_for()
        page.get_by_role("link", name="All rows from the beginning").click()
        line(page, 1).wait_for()
        page.get_by_label("base").select_option("none")
        page.locator(".learnt", has_text="On").first.wait_for(state="detached")
        page.wait_for_url(lambda url: "base=none" in url)


def test_hostile_rows_are_text(visitor: Visitor, state: StorageState, faulty: str) -> None:
    with visitor.visit(state, hash_=f"#/files/{faulty}?line=7") as (page, _):
        row = line(page, 7)
        row.locator("mark.learnt").first.wait_for()
        text = row.locator(".data-pieces").inner_text()
        assert all(each in text for each in HOSTILE if each.isprintable() and len(each) < 100)
        assert "</script>\\u202e\\u0000" in text
        assert "\\u202egnp.exe" in text
        expect(page.locator("main img, main script, main iframe, main b b")).to_have_count(0)
        page.goto(f"{visitor.url}/#/files/{faulty}?only=errors")
        line(page, 5).wait_for()
        expect(line(page, 5)).to_contain_text("<b>boss</b>")


def test_files_are_reached_and_sent_by_keyboard(visitor: Visitor, state: StorageState, tmp_path: Path) -> None:
    path = tmp_path / "<img src=x onerror=alert(1)>rows.jsonl"
    path.write_text('{"prompt": "a", "response": "b"}\n')
    with visitor.visit(state, hash_="#/jobs") as (page, _):
        page.get_by_role("heading", name="Jobs", exact=True).wait_for()
        page.keyboard.press("g")
        page.keyboard.press("d")
        page.get_by_role("table", name="Files").wait_for()
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.get_by_role("article").first.wait_for()
        page.keyboard.press("j")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Line 1"
        page.get_by_role("navigation", name="Screens").get_by_role("link", name="Data").click()
        page.get_by_label("Upload a file").set_input_files(path)
        page.get_by_role("heading", name="<img src=x onerror=alert(1)>rows.jsonl").wait_for()
        line(page, 1).wait_for()


def test_file_is_deleted_after_its_users_are_named(
    visitor: Visitor, state: StorageState, installation: Installation
) -> None:
    file_id = installation.upload()
    name = installation.call("GET", f"/v1/files/{file_id}")["filename"]
    contract = {"model": {"name": BASE}, "data": {"train_file": file_id}, "artifact": {"publish": False}}
    job = {"kind": "finetune", "name": "reader", "contract": contract | {"exec": {"epochs": 500}}}
    job_id = installation.call("POST", "/v1/jobs", json=job)["id"]
    check = {"type": "python", "name": "json", "source": "", "mens": {"check": "json_schema"}}
    config = {"type": "custom", "item_schema": {"type": "object"}}
    made = {"name": "Asks it", "data_source_config": config, "testing_criteria": [check], "metadata": {"file": file_id}}
    installation.call("POST", "/v1/evals", json=made)
    with visitor.visit(state, allowed=frozenset({409}), hash_=f"#/files/{file_id}") as (page, _):
        page.get_by_role("button", name="Delete…").click()
        dialog = page.get_by_role("dialog", name="Confirm")
        users = dialog.get_by_role("listitem")
        expect(users.filter(has_text="reader")).to_have_count(1)
        expect(users.filter(has_text="Asks it")).to_have_count(1)
        assert not findings(page)
        dialog.get_by_role("button", name="Delete it").click()
        expect(dialog.get_by_role("alert")).to_contain_text(job_id)
        dialog.get_by_role("button", name="Back").click()
        expect(page.get_by_role("button", name="Delete…")).to_be_focused()
        installation.call("POST", f"/v1/jobs/{job_id}/cancel")
        installation.wait(job_id, lambda job: job["state"] == "cancelled")
        page.keyboard.press("Enter")
        expect(users.filter(has_text="cancelled")).to_have_count(1)
        dialog.get_by_role("button", name="Delete it").click()
        page.wait_for_url("**/#/files")
        page.get_by_role("table", name="Files").wait_for()
        expect(page.locator(f'a[href="#/files/{file_id}"]')).to_have_count(0)
        expect(page.locator("#content")).to_be_focused()
    assert name and file_id not in [one["id"] for one in installation.call("GET", "/v1/files")["data"]]


@pytest.mark.parametrize(
    ("name", "content", "command"),
    [
        ("my faq.csv", "question,answer\nWhen?,Now.\n", "mens data convert 'my faq.csv' -o rows.jsonl"),
        ("array.json", '[{"prompt": "a", "response": "b"}]', "mens data convert array.json -o rows.jsonl"),
        (
            "sharegpt.jsonl",
            '{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}\n' * 3,
            "mens data convert sharegpt.jsonl -o rows.jsonl",
        ),
        ("notes.txt", "Invoices are due on the first of each month.\n", ""),
    ],
)
def test_file_of_another_form_shows_the_command_that_converts_it(
    visitor: Visitor, state: StorageState, tmp_path: Path, name: str, content: str, command: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with visitor.visit(state, hash_="#/files") as (page, _):
        page.get_by_label("Upload a file").set_input_files(path)
        report = page.get_by_role("region", name="Report")
        report.get_by_text("would be refused").wait_for()
        expect(report.locator("pre")).to_have_text([command] if command else [])
        expect(report).not_to_contain_text("`")
        if command:
            report.get_by_role("button", name="Copy").click()
            assert page.evaluate("navigator.clipboard.readText()") == command
        assert not findings(page)


def test_viewer_reads_and_sends_nothing(visitor: Visitor, states: dict[str, StorageState], faulty: str) -> None:
    with visitor.visit(states["viewer"], size=PHONE, allowed=frozenset({403}), hash_="#/files") as (page, _):
        page.get_by_role("table", name="Files").wait_for()
        expect(page.get_by_label("Upload a file")).to_be_disabled()
        expect(page.get_by_title("needs the role trainer; you have viewer").first).to_be_visible()
        assert ask(page, "POST", "/v1/files", {}) == 403
        assert ask(page, "GET", f"/v1/files/{faulty}/rows") == 200
        page.goto(f"{visitor.url}/#/files/{faulty}")
        line(page, 1).locator("mark.learnt").first.wait_for()
        expect(page.get_by_role("button", name="Train on it")).to_be_disabled()
        expect(page.get_by_role("button", name="Delete…")).to_be_disabled()


def test_copies_are_of_what_is_shown(visitor: Visitor, state: StorageState, faulty: str) -> None:
    with visitor.visit(state, hash_=f"#/files/{faulty}?only=errors&length=64") as (page, _):
        line(page, 3).wait_for()
        page.get_by_role("button", name="Copy as…").click()
        copied = page.get_by_role("dialog", name="Copy as").inner_text()
        query = f"/v1/files/{faulty}/rows?base_model={BASE}&seq_len=64&after=0&limit=20&only=errors"
        assert copied.count(query) == 2
        assert f"mens data check invoices.jsonl --model {BASE}" in copied


def test_report_that_takes_long_is_awaited_and_a_refusal_is_shown(
    visitor: Visitor, state: StorageState, faulty: str
) -> None:
    answers = [(202, '{"object": "file.report.pending", "file_id": "x"}')]
    refusal = (
        '{"error": {"message": "Too slow.", "mens": {"code": "DATA_VIEW_FAILED", "remedy": "Ask for fewer rows."}}}'
    )

    def report(route: Route) -> None:
        status, body = answers.pop() if answers else (0, "")
        if status:
            route.fulfill(status=status, content_type="application/json", body=body)
        else:
            route.continue_()

    with visitor.visit(state, allowed=frozenset({400}), hash_="#/files") as (page, _):
        page.route("**/report?*", report)
        page.route("**/rows?*", lambda route: route.fulfill(status=400, content_type="application/json", body=refusal))
        page.goto(f"{visitor.url}/#/files/{faulty}")
        page.get_by_text("The whole file is being read…").wait_for()
        page.get_by_role("region", name="Rows").get_by_text("DATA_VIEW_FAILED").wait_for()
        expect(page.get_by_text("Ask for fewer rows.")).to_be_visible()
        page.get_by_label("Report").get_by_text("DATASET_LINE_INVALID").wait_for()
        page.unroute("**/rows?*")
        page.get_by_role("region", name="Rows").get_by_role("button", name="Try again").click()
        line(page, 1).wait_for()


def test_unknown_file_says_so(visitor: Visitor, state: StorageState) -> None:
    with visitor.visit(state, allowed=frozenset({404}), hash_="#/files/file-nothing") as (page, _):
        page.get_by_text("File not found.").wait_for()
