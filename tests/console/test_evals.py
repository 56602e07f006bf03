"""Evals: from the list to a run's items, both answers side by side, a filter for lost items, and answers shown as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.console.browser import HOSTILE, Visitor, ask
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
