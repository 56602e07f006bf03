"""Two models side by side: both answer, each can be stopped separately, a verdict becomes a row, hostile answers are
shown as text.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.console.browser import PHONE, Visitor
from tests.support.waiting import eventually
from tests.system.loop import ANSWER, BASE, QUESTION, Installation

if TYPE_CHECKING:
    from playwright.sync_api import Route, StorageState

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


def test_both_models_answer_and_the_adapter_is_named(
    visitor: Visitor, state: StorageState, installation: Installation, tuned: dict[str, Any]
) -> None:
    with visitor.visit(state, hash_=f"#/playground?left=invoices&right={BASE}") as (page, _):
        page.get_by_label("Your question").fill(QUESTION)
        page.keyboard.press("Control+Enter")
        left = page.get_by_role("article", name="Answer of the left model")
        left.get_by_text(ANSWER).wait_for(timeout=60_000)
        expect(left.get_by_title(tuned["result"]["adapter_id"])).to_be_visible()
        page.get_by_role("button", name="left is better").click()
        page.get_by_role("button", name="Save as a file for evals").click()
        page.get_by_role("status").get_by_text("Saved as").wait_for()
        file_id = page.get_by_role("status").locator("code").inner_text()
        assert QUESTION not in page.url
    with installation.openai() as client:
        row = json.loads(client.files.content(file_id).read())
    assert {**row["item"], "left": "", "right": "", "right_cut": ""} == {
        "messages": [{"role": "user", "content": QUESTION}],
        "expected": row["item"]["left"],
        "prompt": QUESTION,
        "right_cut": "",
        "left_model": "invoices",
        "left": "",
        "right_model": BASE,
        "right": "",
        "verdict": "left",
    }
    assert ANSWER in row["item"]["left"]


def test_answer_keeps_the_name_of_the_model_that_gave_it(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any]
) -> None:
    """Also in the rows that are saved, with the system message; the copied request is the one that was made."""

    def answer(route: Route) -> None:
        body = 'data: {"choices": [{"delta": {"content": "Paid."}}]}\n\ndata: [DONE]\n\n'
        route.fulfill(content_type="text/event-stream", body=body)

    with visitor.visit(state, hash_=f"#/playground?left=invoices&right={BASE}") as (page, _):
        page.route("**/v1/chat/completions", answer)
        page.get_by_label("system message").fill("One word, it's short.")
        page.get_by_label("Your question").fill("Is 4711 paid?")
        page.get_by_role("button", name="Send both").click()
        left = page.get_by_role("article", name="Answer of the left model")
        left.get_by_text("Paid.").wait_for()
        expect(page.get_by_text("Each model is sent its chat so far too")).to_be_visible()
        page.get_by_label("Left model", exact=True).select_option(BASE)
        expect(left.get_by_text("invoices", exact=True)).to_be_visible()
        page.get_by_role("button", name="left is better").click()
        row = page.get_by_label("Rows", exact=True)
        expect(row).to_contain_text('"left_model":"invoices"')
        expect(row).to_contain_text('"system":"One word, it\'s short."')
        page.get_by_role("button", name="Copy as…").click()
        copied = page.get_by_role("dialog", name="Copy as")
        for language in ("mens", "curl", "Python"):
            text = copied.get_by_label(language, exact=True)
            expect(text).to_contain_text("Is 4711 paid?")
            expect(text).to_contain_text("One word, it")
        copied.get_by_role("button", name="Close").click()
        page.get_by_role("button", name="Save as a file for evals").click()
        page.get_by_role("status").get_by_role("link", name="New eval of these rows").click()
        expect(page.get_by_label("Question", exact=True)).to_have_value("messages")
        expect(page.get_by_label("Expected answer", exact=True)).to_have_value("expected")
        page.go_back()
        page.goto(f"{page.url.partition('#')[0]}#/files?purpose=evals")
        page.get_by_role("link", name=re.compile("^playground-")).first.click()
        expect(page.get_by_role("heading", name="playground-")).to_be_visible()


@pytest.mark.parametrize(
    ("end", "is_offered", "said"),
    [
        ('data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n', True, ""),
        ('data: {"choices": [{"delta": {}, "finish_reason": "length"}]}\n\n', True, "cut at the most tokens"),
        ("", False, "cut when the connection ended"),
    ],
    ids=["whole", "length", "interrupted"],
)
def test_cut_answer_is_not_expected(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any], end: str, is_offered: bool, said: str
) -> None:
    """One that reached the limit of tokens is marked in the row; one without an end is not offered."""

    def answer(route: Route) -> None:
        body = 'data: {"choices": [{"delta": {"content": "Paid on"}}]}\n\n'
        is_left = route.request.post_data_json["model"] == "invoices"
        route.fulfill(content_type="text/event-stream", body=body + (end if is_left else "data: [DONE]\n\n"))

    with visitor.visit(state, hash_=f"#/playground?left=invoices&right={BASE}") as (page, _):
        page.route("**/v1/chat/completions", answer)
        page.get_by_label("Your question").fill("Is 4711 paid?")
        page.get_by_role("button", name="Send both").click()
        left = page.get_by_role("article", name="Answer of the left model")
        expect(left).to_have_attribute("aria-busy", "false")
        expect(left.locator("header")).to_contain_text(said)
        if not is_offered:
            expect(page.get_by_text(f"Not for an eval: the left answer was {said}.")).to_be_visible()
            expect(page.get_by_role("group", name="Verdict")).to_have_count(0)
            return
        page.get_by_role("button", name="left is better").click()
        row = page.get_by_label("Rows", exact=True)
        if said:
            expect(row).to_contain_text('"left_cut":"length"')
            expect(row).not_to_contain_text("expected")
            expect(page.get_by_text("it is not an expected answer")).to_be_visible()
        else:
            expect(row).to_contain_text('"expected":"Paid on"')
            expect(row).not_to_contain_text("_cut")


def test_system_message_is_wide_enough_on_a_phone(visitor: Visitor, state: StorageState) -> None:
    with visitor.visit(state, size=PHONE, hash_="#/playground") as (page, _):
        field = page.get_by_label("system message")
        field.wait_for()
        box = field.bounding_box()
        assert box
        assert box["width"] > PHONE[0] / 2


def test_refusal_of_one_model_leaves_the_other(visitor: Visitor, state: StorageState, tuned: dict[str, Any]) -> None:
    address = f"#/playground?left=nobody&right={BASE}"
    with visitor.visit(state, allowed=frozenset({404}), hash_=address) as (page, _):
        page.get_by_label("Your question").fill(QUESTION)
        page.get_by_role("button", name="Send both").click()
        page.get_by_role("article", name="Answer of the left model").get_by_text("No answer").wait_for()
        page.get_by_role("article", name="Answer of the right model").get_by_text(
            "tokens", exact=False
        ).first.wait_for()


def test_stopping_one_answer_ends_its_request_and_leaves_the_other(
    visitor: Visitor, state: StorageState, installation: Installation, tuned: dict[str, Any]
) -> None:
    tokens, choices = 900, 16  # many seconds of work for the engine

    def lengthen(route: Route) -> None:
        body = route.request.post_data_json
        more = (
            {"max_tokens": tokens, "n": choices, "ignore_eos": True, "temperature": 1}
            if body["model"] == "invoices"
            else {}
        )
        route.continue_(post_data=json.dumps(body | more))

    before = installation.engine("generation_tokens_total")
    with visitor.visit(state, hash_=f"#/playground?left=invoices&right={BASE}&max=32") as (page, _):
        page.route("**/v1/chat/completions", lengthen)
        page.get_by_label("Your question").fill(QUESTION)
        page.get_by_role("button", name="Send both").click()
        left, right = (page.get_by_role("article", name=f"Answer of the {side} model") for side in ("left", "right"))
        expect(left.locator(".text")).to_have_text(re.compile(r"\S"))
        eventually(lambda: installation.engine("num_requests_running"), 30, "the engine works")
        left.get_by_role("button", name="Stop").click()
        expect(left).to_have_attribute("aria-busy", "false")
        expect(right).to_have_attribute("aria-busy", "false")
        expect(right.get_by_text(re.compile(r"^\d+ tokens?$"))).to_be_visible()
        expect(left.locator(".text")).to_have_text(re.compile(r"\S"))
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.get_by_role("button", name="Stop")).to_have_count(0)
        expect(page.get_by_text("Not for an eval: the left answer was stopped by you.")).to_be_visible()
        expect(page.get_by_role("group", name="Verdict")).to_have_count(0)
        eventually(lambda: not installation.engine("num_requests_running"), 60, "the engine has nothing to do")
    assert 1 <= installation.engine("generation_tokens_total") - before < tokens * choices


def test_hostile_answer_is_text(visitor: Visitor, state: StorageState, tuned: dict[str, Any]) -> None:
    text = "<img src=x onerror=alert(1)> **bold** \u202e <|im_end|>"

    def answer(route: Route) -> None:
        part = {"choices": [{"delta": {"content": text}}]}
        body = f"data: {json.dumps(part)}\n\ndata: [DONE]\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    with visitor.visit(state, hash_=f"#/playground?left=invoices&right={BASE}") as (page, _):
        page.route("**/v1/chat/completions", answer)
        page.get_by_label("Your question").fill(text)
        page.get_by_role("button", name="Send both").click()
        left = page.get_by_role("article", name="Answer of the left model")
        left.get_by_text("<img src=x onerror=alert(1)> **bold** \\u202e <|im_end|>").wait_for()
        expect(page.locator("main img")).to_have_count(0)
