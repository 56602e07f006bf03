"""Usage and system: the sums of a real run, its table as CSV, the view of each role, prices, and hostile names shown as
text.
"""

from __future__ import annotations

import csv
import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.console.browser import HOSTILE, Visitor, ask, sign_in
from tests.system.loop import Installation

if TYPE_CHECKING:
    from playwright.sync_api import Route, StorageState

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


def test_usage_is_added_up_and_saved(
    visitor: Visitor, state: StorageState, installation: Installation, tuned: dict[str, Any]
) -> None:
    by_base = installation.call("GET", "/v1/usage/costs", params={"group_by": "base"})["data"]
    with visitor.visit(state, hash_="#/jobs") as (page, _):
        page.keyboard.press("g")
        page.keyboard.press("u")
        page.get_by_label("Group by").select_option("base")
        table = page.get_by_role("group", name="Usage").get_by_role("row")
        table.nth(1).wait_for()
        expect(table).to_have_count(len(by_base) + 1)
        expect(table.nth(1)).to_contain_text(tuned["base_model"])
        page.wait_for_url(lambda url: "by=base" in url)
        expect(page.get_by_role("columnheader", name="cost"), "no price is set, so none is shown").to_have_count(0)
        expect(page.get_by_role("region", name="Sum").get_by_text("GPU-minutes", exact=True)).to_be_visible()
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as CSV").click()
        rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
        assert [(row["base"], int(row["attempts"])) for row in rows] == [
            (line["base"], line["attempts"]) for line in by_base
        ]
        adapter = tuned["result"]["adapter_id"]
        page.get_by_label("Group by").select_option("model")
        page.get_by_role("group", name="Usage").get_by_title(adapter).wait_for()
        page.get_by_label("Group by").select_option("job")
        job = page.get_by_role("group", name="Usage").get_by_title(tuned["id"])
        expect(job).to_have_attribute("href", f"#/runs/{tuned['id']}")
        page.get_by_label("Period").select_option("1")
        page.wait_for_url("**days=1**")


def test_system_shows_the_machines_to_operators_alone(visitor: Visitor, states: dict[str, StorageState]) -> None:
    with visitor.visit(states["admin"], hash_="#/usage?tab=system") as (page, _):
        for title in ("Workers", "Replicas"):
            page.get_by_role("group", name=f"Table of {title}").get_by_role("row").nth(1).wait_for()
        worker = page.get_by_role("group", name="Table of Workers").get_by_role("row").nth(1).inner_text()
        assert "takes jobs" in worker
        assert "GB of " in worker, "the free part of its disk"
        page.goto(f"{visitor.url}/#/usage?by=tenant")
        page.get_by_role("group", name="Usage").get_by_role("cell", name="shared").wait_for()
        page.goto(f"{visitor.url}/#/usage?tab=system")
        page.get_by_role("button", name="Copy as…").click()
        dialog = page.get_by_role("dialog", name="Copy as")
        for title in ("curl", "Python"):
            for path in ("/v1/workers", "/v1/replicas", "/v1/quotas"):
                expect(dialog.get_by_label(title, exact=True)).to_contain_text(path)
        expect(dialog.get_by_label("mens", exact=True)).to_contain_text("mens status --workers")
    with visitor.visit(states["viewer"], allowed=frozenset({403}), hash_="#/usage?tab=system") as (page, watch):
        page.get_by_role("heading", name="For operators").wait_for()
        expect(page.get_by_role("button", name="Copy as…")).to_have_count(0)
        assert not [one.url for one in watch.requests if "/v1/workers" in one.url]
        page.goto(f"{visitor.url}/#/usage?by=tenant")
        page.get_by_role("heading", name="Your key").wait_for()
        expect(page.get_by_label("Group by").get_by_role("option", name="tenant")).to_have_count(0)
        assert ask(page, "GET", "/v1/usage/costs?group_by=tenant") == 403
        assert ask(page, "GET", "/v1/replicas") == 403
        assert ask(page, "GET", "/v1/quotas") == 403


def test_admin_sees_the_sign_ins_of_others_and_ends_one(
    visitor: Visitor, installation: Installation, state: StorageState
) -> None:
    name = f"<i>leaver-{secrets.token_hex(4)}</i>"
    key = installation.call("POST", "/v1/keys", json={"name": name, "role": "trainer"})
    other = installation.call(
        "POST", "/v1/keys", json={"name": "elsewhere", "role": "viewer", "tenant": f"t-{secrets.token_hex(4)}"}
    )
    with visitor.visit() as (page, _):
        sign_in(page, other["secret"])
    with visitor.visit(allowed=frozenset({401}), hash_="#/usage?tab=sign-ins") as (leaver, _):
        sign_in(leaver, key["secret"])
        rows = leaver.get_by_role("group", name="Sign-ins").get_by_role("row")
        expect(rows.nth(1)).to_contain_text("this one")
        expect(rows, "a trainer sees their own").to_have_count(2)
        with visitor.visit(state, hash_="#/usage") as (page, _):
            page.get_by_role("link", name="sign-ins").click()
            table = page.get_by_role("group", name="Sign-ins")
            row = table.get_by_role("row", name=name)
            row.wait_for()
            expect(table.get_by_text("this one")).to_have_count(1)
            expect(table.get_by_text("elsewhere"), "of another tenant").to_have_count(0)
            page.get_by_role("button", name="Copy as…").click()
            expect(page.get_by_role("dialog", name="Copy as").get_by_label("curl", exact=True)).to_contain_text(
                "/v1/sign_ins"
            )
            page.get_by_role("button", name="Close").click()
            row.get_by_role("button").click()
            page.get_by_role("dialog", name="Confirm").get_by_role("button", name="Back").click()
            expect(row).to_have_count(1)
            row.get_by_role("button").click()
            page.get_by_role("dialog", name="Confirm").get_by_role("button", name="End it").click()
            expect(row).to_have_count(0)
        leaver.get_by_text("Your sign-in has ended").wait_for()


def test_prices_and_hostile_names_are_text(visitor: Visitor, state: StorageState) -> None:
    line = {"day": None, "tenant": None, "base": None, "attempts": 1, "gpu_minutes": 90.0, "requests": 2}
    line |= {"prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 4, "gpu_cost": "2.7000", "token_cost": None}

    def answer(route: Route) -> None:
        lines = [line | {"id": str(place), "key_name": text, "currency": "EUR"} for place, text in enumerate(HOSTILE)]
        route.fulfill(content_type="application/json", body=json.dumps({"data": lines, "has_more": False}))

    with visitor.visit(state, hash_="#/jobs") as (page, _):
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.route("**/v1/usage/costs?*", answer)
        page.goto(f"{visitor.url}/#/usage?by=key")
        rows = page.get_by_role("group", name="Usage").get_by_role("row")
        rows.nth(len(HOSTILE)).wait_for()
        expect(rows.nth(1)).to_contain_text(HOSTILE[0])
        expect(rows.nth(4)).to_contain_text("\\u202egnp.exe")
        expect(rows.nth(1)).to_contain_text("2.70 EUR")
        expect(page.get_by_role("columnheader", name="token cost")).to_have_count(0)
        expect(page.locator("main img, main script")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
