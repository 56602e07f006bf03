"""The list of jobs: from the queue to the end without a reload, filters in the address, keyboard, hostile names, no network."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.console.browser import HOSTILE, Visitor
from tests.system.loop import Installation

if TYPE_CHECKING:
    from playwright.sync_api import Route, StorageState

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


def test_job_goes_from_the_queue_to_its_end_without_a_reload(
    visitor: Visitor, installation: Installation, state: StorageState, tuned: dict[str, Any]
) -> None:
    with visitor.visit(state) as (page, watch):
        page.get_by_role("link", name="invoices", exact=True).first.wait_for()
        loads = len([request for request in watch.requests if request.is_navigation_request()])
        job_id = installation.train(name="seen-live", publish=False, epochs=60)
        row = page.locator("tbody tr", has=page.locator(f'a[href="#/runs/{job_id}"]'))
        row.locator(".badge.running").wait_for(timeout=60_000)
        row.get_by_role("progressbar").wait_for()
        row.locator(".badge.succeeded").wait_for(timeout=60_000)
        expect(page.locator(".connection.live")).to_be_visible()
        assert len([request for request in watch.requests if request.is_navigation_request()]) == loads
    installation.wait_for_success(job_id)


def test_filters_are_in_the_address_and_back_leaves_them(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any], failed: dict[str, Any]
) -> None:
    with visitor.visit(state) as (page, watch):
        tabs = page.get_by_role("navigation", name="State").get_by_role("link")
        tabs.filter(has_text=re.compile(r"^failed [1-9]")).wait_for()
        expect(tabs.filter(has_text="paused")).to_have_text("paused 0")
        tabs.filter(has_text="failed").click()
        page.get_by_role("link", name="refunds").first.wait_for()
        page.wait_for_url(lambda url: url.endswith("#/jobs?state=failed"))
        page.locator("a.name", has_text="invoices").first.wait_for(state="detached")
        expect(page.get_by_text(failed["error"]["code"]).first).to_be_visible()
        page.go_back()
        page.locator("a.name", has_text="invoices").first.wait_for()
        page.keyboard.press("/")
        page.keyboard.type("no such job")
        page.get_by_role("heading", name="No job fits these filters").wait_for()
        page.wait_for_url(lambda url: "q=no+such+job" in url)
        expect(tabs.filter(has_text="paused"), "nothing is counted by a text").to_have_text("paused")
        assert not [one.url for one in watch.requests if "jobs:count" in one.url and "q=" in one.url]


def test_keyboard_alone_opens_a_job(visitor: Visitor, state: StorageState, tuned: dict[str, Any]) -> None:
    with visitor.visit(state) as (page, _):
        page.locator("a.name").first.wait_for()
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        name = page.evaluate("document.activeElement.textContent")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name=name, exact=True).wait_for()
        page.keyboard.press("g")
        page.keyboard.press("j")
        page.get_by_role("heading", name="Jobs").wait_for()
        page.keyboard.press("?")
        page.get_by_role("dialog", name="Keyboard").wait_for()


def test_commands_are_copied_without_a_key(
    visitor: Visitor, state: StorageState, installation: Installation, tuned: dict[str, Any]
) -> None:
    with visitor.visit(state, hash_="#/jobs?state=succeeded") as (page, _):
        page.get_by_role("button", name="Copy as…").click()
        dialog = page.get_by_role("dialog", name="Copy as")
        dialog.get_by_text("mens jobs list --state succeeded").wait_for()
        dialog.get_by_role("button", name="Copy", exact=True).nth(1).click()
        copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith('curl -H "Authorization: Bearer $MENS_API_KEY"')
    assert installation.connection.key not in copied


def test_hostile_names_are_text(visitor: Visitor, state: StorageState, tuned: dict[str, Any]) -> None:
    def answer(route: Route) -> None:
        page_of_jobs = route.fetch().json()
        one = page_of_jobs["data"][0]
        fields = ("name", "base_model", "alias", "created_by")
        page_of_jobs["data"] = [
            {**one, "id": f"ftjob-{place}", **dict.fromkeys(fields, text)} for place, text in enumerate(HOSTILE)
        ]
        route.fulfill(content_type="application/json", body=json.dumps(page_of_jobs))

    with visitor.visit(state, hash_="#/playground") as (page, _):
        page.get_by_role("heading", name="Playground").wait_for()
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.route("**/v1/jobs?*", answer)
        page.keyboard.press("g")
        page.keyboard.press("j")
        page.locator("a.name").nth(len(HOSTILE) - 1).wait_for()
        names = page.locator("a.name").all_text_contents()
        assert names[0] == HOSTILE[0]
        assert names[1] == HOSTILE[1]
        assert names[3] == "\\u202egnp.exe"
        assert len(names[4]) <= 81
        assert names[5:] == ["nul\\u0000here", "lone \\ud800 surrogate"]
        expect(page.locator("main img, main script")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_page_says_how_old_it_is_without_a_network_and_lives_again(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any]
) -> None:
    with visitor.visit(state) as (page, watch):
        page.locator("a.name").first.wait_for()
        page.locator(".connection.live").wait_for()
        watch.is_offline = True
        page.context.set_offline(True)
        page.route("**/v1/**", lambda route: route.abort())  # the open stream outlives `set_offline`
        page.evaluate("dispatchEvent(new Event('offline'))")
        page.get_by_text("stale since").wait_for(timeout=60_000)
        expect(page.locator("a.name")).not_to_have_count(0)
        page.unroute("**/v1/**")
        page.context.set_offline(False)
        page.locator(".connection.live").wait_for(timeout=30_000)


def test_open_page_asks_little(visitor: Visitor, state: StorageState, tuned: dict[str, Any]) -> None:
    with visitor.visit(state) as (page, watch):
        page.locator("a.name").first.wait_for()
        page.wait_for_timeout(500)
        before = len(watch.requests)
        page.wait_for_timeout(6_000)
        assert len(watch.requests) <= before + 1, [request.url for request in watch.requests[before:]]
