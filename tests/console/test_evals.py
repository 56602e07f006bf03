"""Evals: from the list to a run's items, both answers side by side, a filter for lost items, and answers shown as text."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.console.browser import HOSTILE, Visitor, ask, findings
from tests.system.loop import BASE, Installation

if TYPE_CHECKING:
    from playwright.sync_api import Route, StorageState

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


def test_both_answers_are_side_by_side(
    visitor: Visitor,
    states: dict[str, StorageState],
    installation: Installation,
    tuned: dict[str, Any],
    evaluated: tuple[str, str],
) -> None:
    """For a viewer, who may read them and start nothing."""
    eval_id, run_id = evaluated
    items = installation.call("GET", f"/v1/evals/{eval_id}/runs/{run_id}/output_items")["data"]
    differ = [one for one in items if one["sample"]["output"] != one["mens"]["incumbent"]["sample"]["output"]]
    with visitor.visit(states["viewer"], allowed=frozenset({403}), hash_="#/evals") as (page, _):
        page.get_by_role("link", name="Invoices").click()
        page.get_by_role("link", name="invoices", exact=True).click()
        articles = page.get_by_role("article")
        articles.nth(2).wait_for()
        assert len(items) == 3
        expect(articles).to_have_count(len(items))
        first = page.get_by_role("article", name="Item 1", exact=True)
        expect(first).to_contain_text("<b>0</b>?")
        expect(first.get_by_role("heading", level=3)).to_have_count(2)
        expect(first.get_by_role("heading", level=3).first).to_contain_text(tuned["result"]["adapter_id"].split("@")[0])
        expect(first.get_by_role("heading", level=3).last).to_contain_text(BASE)
        filters = page.get_by_role("navigation", name="Which items")
        filters.get_by_role("link", name="not passed").click()
        page.get_by_role("article", name="Item 1", exact=True).wait_for(state="detached")
        expect(articles).to_have_count(2)
        filters.get_by_role("link", name="only differences").click()
        page.wait_for_url("**show=different**")
        page.locator(".skeleton").wait_for(state="detached")
        expect(articles).to_have_count(len(differ))
        filters.get_by_role("link", name="only lost").click()
        page.get_by_role("heading", name="No such item").wait_for()
        assert ask(page, "POST", f"/v1/evals/{eval_id}/runs/{run_id}/cancel") == 403
        page.get_by_role("link", name="Its job").click()
        page.get_by_role("link", name="its items").click()
        articles.nth(2).wait_for()


def test_eval_is_made_of_a_training_file_and_run_by_keyboard_and_pointer(
    visitor: Visitor, state: StorageState, installation: Installation, tuned: dict[str, Any]
) -> None:
    """Its rows become items; the address keeps the form; the run's items appear without a reload."""
    file = installation.upload()
    with visitor.visit(state, hash_="#/evals") as (page, _):
        page.get_by_role("link", name="New eval").click()
        button = page.get_by_role("button", name="Create eval")
        expect(button).to_be_disabled()
        page.get_by_label("File", exact=True).select_option(file)
        expect(page.get_by_label("Question")).to_have_value("messages")
        expect(page.get_by_label("Expected answer", exact=True)).to_have_value("expected")
        page.get_by_label("Name").fill("Lesson")
        page.get_by_role("combobox", name="Check 1", exact=True).select_option("icontains")
        page.get_by_role("button", name="Add a check").click()
        page.get_by_role("combobox", name="Check 2", exact=True).select_option("rouge_l")
        page.get_by_label("At least of check 2").fill("0.1")
        page.wait_for_url("**name=Lesson**")
        page.reload()
        expect(page.get_by_label("At least of check 2")).to_have_value("0.1")
        expect(page.get_by_label("Name")).to_have_value("Lesson")
        page.get_by_role("button", name="Copy as…").click()
        copied = page.get_by_role("dialog", name="Copy as")
        expect(copied.get_by_label("mens", exact=True)).to_contain_text("--check icontains --check rouge_l=0.1")
        expect(copied.get_by_label("curl", exact=True)).to_contain_text('"evaluation_metric":"rouge_l"')
        expect(copied.get_by_label("Python", exact=True)).to_contain_text('"pass_threshold": 0.1')
        copied.get_by_role("button", name="Close").click()
        button.focus()
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="New run of Lesson").wait_for()
        expect(page.get_by_label("File", exact=True)).to_have_value(file)
        page.get_by_label("Model", exact=True).select_option("invoices")
        page.get_by_label("Against").select_option(BASE)
        page.get_by_label("Most tokens").fill("16")
        start = page.get_by_role("button", name="Start run")
        expect(start).to_be_enabled()
        start.dblclick()
        page.wait_for_url("**/ftjob-**")
        result = page.get_by_role("region", name="Result")
        expect(result.get_by_text("succeeded")).to_be_visible(timeout=120_000)
        expect(result.get_by_text("icontains")).to_be_visible()
        page.get_by_role("article").nth(2).wait_for()
        run_id = page.url.rpartition("/")[2]
        eval_id = page.url.split("/")[-2]
    made = installation.call("GET", f"/v1/evals/{eval_id}")
    assert [one["type"] for one in made["testing_criteria"]] == ["string_check", "text_similarity"]
    runs = installation.call("GET", f"/v1/evals/{eval_id}/runs")["data"]
    assert [run["id"] for run in runs] == [run_id]
    assert runs[0]["data_source"]["source"]["id"] != file
    with visitor.visit(state, hash_=f"#/evals/{eval_id}") as (page, _):
        page.get_by_role("link", name="Run…").click()
        expect(page.get_by_label("File", exact=True)).to_have_value(runs[0]["data_source"]["source"]["id"])


def test_refusals_are_shown_at_their_fields(
    visitor: Visitor, state: StorageState, installation: Installation, evaluated: tuple[str, str]
) -> None:
    checks = '["exact", "compiles=cobol", "rouge_l="]'
    items = installation.upload_bytes("items.jsonl", b'{"item": {"prompt": "Why?", "expected": "So."}}')
    address = f"#/evals/new?file={items}&checks={quote(checks)}"
    with visitor.visit(state, allowed=frozenset({400, 404}), hash_=address) as (page, _):
        create = page.get_by_role("button", name="Create eval")
        expect(create).to_be_enabled()
        create.click()
        alert = page.get_by_role("group", name="Check 3").get_by_role("alert")
        expect(alert).to_contain_text("lowest score that passes")
        page.get_by_role("button", name="Remove check 3").click()
        create.click()
        expect(page.get_by_role("group", name="Check 2").get_by_role("alert")).to_contain_text("cobol")
        expect(page.get_by_label("Language of check 2")).to_have_attribute("aria-invalid", "true")
        page.get_by_text("Graders in OpenAI's form").click()
        page.get_by_label("Graders", exact=True).fill("{")
        expect(create).to_be_disabled()
        assert not findings(page)
        page.goto(f"{visitor.url}/#/evals/{evaluated[0]}?run=new&model=invoices&temperature=hot")
        start = page.get_by_role("button", name="Start run")
        expect(start).to_be_enabled()
        start.click()
        expect(page.get_by_label("Temperature")).to_have_attribute("aria-invalid", "true")
        refusal = page.get_by_role("alert").filter(has_text="Not started")
        expect(refusal).to_contain_text("Correct what is marked in the form: Temperature.")
        expect(refusal).not_to_contain_text("openapi.json")
        assert not findings(page)


def test_hostile_names_are_text_and_reach_the_api_as_they_are(
    visitor: Visitor, state: StorageState, installation: Installation
) -> None:
    """Names of an eval, of fields, and of models: markup, marks that turn text, names of every object's members, and
    long ones.
    """
    long = "a" * 300
    item = {"question": HOSTILE[0], "__proto__": "yes", "constructor": "no", long: "x", HOSTILE[1]: "y"}
    items = installation.upload_bytes("items.jsonl", json.dumps({"item": item}).encode())
    served = installation.call("GET", "/v1/models")
    alias = next(one for one in served["data"] if one["mens"]["kind"] == "alias")
    served["data"] += [
        alias | {"id": name} for name in (*HOSTILE[:5], "__proto__") if name.isprintable() or "\u202e" in name
    ]
    name = f"{HOSTILE[0]}\u202e {HOSTILE[2]}"
    with visitor.visit(state, allowed=frozenset({400, 404}), hash_="#/jobs") as (page, _):
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.route("**/v1/models", lambda route: route.fulfill(json=served))
        page.goto(f"{visitor.url}/#/evals/new?file={items}&checks={quote(json.dumps(['exact', '__proto__=1']))}")
        expected = page.get_by_label("Expected answer", exact=True)
        expected.wait_for()
        assert set(expected.locator("option").evaluate_all("(all) => all.map((one) => one.value)")) == {
            "", "question", "__proto__", "constructor", long,
        }  # fmt: skip
        expected.select_option("__proto__")
        page.get_by_label("Name").fill(name + long)
        create = page.get_by_role("button", name="Create eval")
        create.click()
        expect(page.get_by_label("Name")).to_have_attribute("aria-invalid", "true")
        check = page.get_by_role("combobox", name="Check 2", exact=True)
        expect(page.get_by_role("group", name="Check 2").get_by_role("alert")).to_be_visible()
        page.get_by_label("Name").fill(name)
        check.select_option("judge")
        judge = page.get_by_label("Judge of check 2")
        judge.select_option(HOSTILE[1])
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.get_by_role("button", name="Remove check 2").click()
        expect(page.locator("main img, main script, main b b")).to_have_count(0)
        assert not findings(page)
        create.click()
        page.get_by_role("heading", name=re.compile(re.escape(HOSTILE[0] + "\\u202e"))).wait_for()
        page.get_by_label("Model", exact=True).select_option("__proto__")
        page.get_by_role("button", name="Start run").click()
        expect(page.get_by_label("Model", exact=True)).to_have_attribute("aria-invalid", "true")
        expect(page.locator("main img, main script")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        eval_id = page.url.rpartition("/")[2].partition("?")[0]
    made = installation.call("GET", f"/v1/evals/{eval_id}")
    assert made["name"] == name
    assert made["data_source_config"]["schema"]["properties"]["item"]["required"] == ["question", "__proto__"]
    assert made["testing_criteria"][0]["reference"] == "{{ item.__proto__ }}"


def test_rows_are_read_up_to_the_limit_of_the_page(
    visitor: Visitor, state: StorageState, installation: Installation, evaluated: tuple[str, str]
) -> None:
    row = json.dumps({"prompt": "When? " + "x" * 15_000, "response": "Now."})
    large, largest = (
        installation.upload_bytes(f"{count}.jsonl", f"{row}\n".encode() * count) for count in (1060, 1070)
    )
    long = installation.upload_bytes(
        "long.jsonl", json.dumps({"prompt": "x" * 700_000, "response": "y"}).encode() + b"\n"
    )
    with visitor.visit(state, allowed=frozenset({400}), hash_=f"#/evals/new?file={long}") as (page, _):
        expect(page.get_by_label("Question")).to_have_value("messages")
        page.goto(f"{visitor.url}/#/evals/{evaluated[0]}?run=new&model=invoices&file={largest}")
        start = page.get_by_role("button", name="Start run")
        expect(start).to_be_disabled()
        expect(page.get_by_text("files up to 16 MB")).to_be_visible()
        page.get_by_label("File", exact=True).select_option(large)
        expect(start).to_be_enabled()
        start.click()
        refusal = page.get_by_role("alert").filter(has_text="item.answer").first  # no row has the field
        expect(refusal).to_be_visible(timeout=60_000)
        expect(page.get_by_text("details.errors")).to_have_count(0)
    file = installation.call("GET", "/v1/files?limit=1")["data"][0]
    assert (file["filename"], file["purpose"]) == ("1060-items.jsonl", "evals")
    assert file["bytes"] > 16_000_000


def test_viewer_sees_no_button(visitor: Visitor, states: dict[str, StorageState], evaluated: tuple[str, str]) -> None:
    """tests/console/test_roles.py sends their requests."""
    with visitor.visit(states["viewer"], hash_="#/evals") as (page, _):
        expect(page.get_by_text("Making an eval needs the role trainer")).to_be_visible()
        expect(page.get_by_role("link", name="New eval")).to_have_count(0)
        for address in ("#/evals/new", f"#/evals/{evaluated[0]}?run=new"):
            page.goto(f"{visitor.url}/{address}")
            expect(page.get_by_text("needs the role trainer")).to_be_visible()
            expect(page.get_by_role("button", name=re.compile("Create|Start"))).to_have_count(0)
            expect(page.get_by_role("link", name="Run…")).to_have_count(0)


def test_lost_items_are_found_on_later_pages_and_shown_as_text(
    visitor: Visitor, state: StorageState, installation: Installation, evaluated: tuple[str, str]
) -> None:
    eval_id, run_id = evaluated
    path = f"/v1/evals/{eval_id}/runs/{run_id}/output_items"
    (item, *_) = installation.call("GET", path)["data"]
    run = installation.call("GET", f"/v1/evals/{eval_id}/runs/{run_id}")
    # A criterion's name that every object has, and of which the other model has no results.
    run["mens"] |= {"criteria": {"constructor": {"passed": 1}}, "incumbent_criteria": {}}

    def made(number: int, text: str, mine: str, other: str) -> dict[str, Any]:
        sample = item["sample"] | {"output": [{"role": "assistant", "content": text}]}
        beside = item["mens"]["incumbent"] | {"status": other}
        changed = {"id": f"{run_id}-{number}", "datasource_item_id": number, "datasource_item": {text: text}}
        return item | changed | {"status": mine, "sample": sample, "mens": item["mens"] | {"incumbent": beside}}

    def answer(route: Route) -> None:
        if "after=" in route.request.url:
            data = [made(100 + place, text, "fail", "pass") for place, text in enumerate(HOSTILE)]
        else:
            data = [made(number, "same", "pass", "pass" if number else "fail") for number in range(100)]
        page_ = {"data": data, "has_more": "after=" not in route.request.url, "last_id": data[-1]["id"]}
        route.fulfill(content_type="application/json", body=json.dumps(page_))

    with visitor.visit(state, hash_="#/jobs") as (page, _):
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.route(f"**{path}?*", answer)
        page.route(f"**/v1/evals/{eval_id}/runs/{run_id}", lambda route: route.fulfill(json=run))
        page.goto(f"{visitor.url}/#/evals/{eval_id}/{run_id}?show=lost")
        articles = page.get_by_role("article")
        articles.nth(len(HOSTILE) - 1).wait_for()
        expect(articles).to_have_count(len(HOSTILE))
        assert "of the other" not in page.get_by_role("region", name="Result").inner_text()
        expect(page.get_by_role("region", name="Result").get_by_text("constructor", exact=True)).to_be_visible()
        expect(articles.nth(0)).to_contain_text(HOSTILE[0])
        expect(articles.nth(3)).to_contain_text("\\u202egnp.exe")
        expect(page.locator("main img, main script")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.get_by_role("link", name="only gained").click()
        page.get_by_role("article", name="Item 1", exact=True).get_by_text("gained", exact=True).wait_for()
        expect(articles).to_have_count(1)
