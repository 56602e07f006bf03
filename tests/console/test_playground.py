"""Two models side by side: both answer, each can be stopped separately, a verdict becomes a row, hostile answers are
shown as text.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.console.browser import Visitor
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
    assert row["item"] | {"left": "", "right": ""} == {
        "prompt": QUESTION,
        "left_model": "invoices",
        "left": "",
        "right_model": BASE,
        "right": "",
        "verdict": "left",
    }
    assert ANSWER in row["item"]["left"]


def test_refusal_of_one_model_leaves_the_other(visitor: Visitor, state: StorageState, tuned: dict[str, Any]) -> None:
    address = f"#/playground?left=nobody&right={BASE}"
    with visitor.visit(state, allowed=frozenset({404}), hash_=address) as (page, _):
        page.get_by_label("Your question").fill(QUESTION)
        page.get_by_role("button", name="Send both").click()
        page.get_by_role("article", name="Answer of the left model").get_by_text("No answer").wait_for()
        page.get_by_role("article", name="Answer of the right model").get_by_text(
            "tokens", exact=False
        ).first.wait_for()


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
