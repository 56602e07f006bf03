"""Aliases, policies and receipts: moves, splits and roll-backs after confirmation, refusals with their gates, and the
limits of each role.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.console.browser import HOSTILE, POLICY, Visitor, ask
from tests.system.loop import Installation

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route, StorageState

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


@dataclass
class Shown:
    """Aliases of one installation, and two adapters for them."""

    installation: Installation
    first: str
    other: str

    def alias(self) -> str:
        """Name of a new alias, which points to the first adapter."""
        name = f"alias-{secrets.token_hex(4)}"
        self.move(name, self.first, "first")
        return name

    def move(self, name: str, adapter: str, reason: str) -> None:
        self.installation.call("PUT", f"/v1/aliases/{name}", json={"adapter": adapter, "reason": reason})

    def governed(self, source: str = POLICY) -> str:
        """Name of a new alias that a policy governs."""
        name = self.alias()
        self.installation.call("POST", "/v1/policies", json={"name": "support", "source": source})
        self.installation.call("PUT", f"/v1/policy_assignments/alias:{name}", json={"policy": "support"})
        return name

    def targets(self, name: str) -> list[tuple[str, int]]:
        found = self.installation.call("GET", f"/v1/aliases/{name}")["targets"]
        return [(target["adapter"], target["weight"]) for target in found]

    def history(self, name: str) -> list[dict[str, Any]]:
        return list(self.installation.call("GET", f"/v1/aliases/{name}/history")["data"])


@pytest.fixture(scope="module")
def shown(installation: Installation, tuned: dict[str, Any]) -> Shown:
    checkpoints = installation.call("GET", f"/v1/jobs/{tuned['id']}/checkpoints")["data"]
    other = next(one["id"] for one in checkpoints if one["published"] and not one["final"])
    return Shown(installation, tuned["result"]["adapter_id"], other)


def open_dialog(page: Page, button: str) -> Any:
    page.get_by_role("button", name=button).click()
    return page.get_by_role("dialog")


def test_alias_is_split_and_rolled_back(visitor: Visitor, state: StorageState, shown: Shown) -> None:
    name = shown.alias()
    with visitor.visit(state, hash_="#/gates") as (page, _):
        page.get_by_role("link", name=name).click()
        dialog = open_dialog(page, "Move or split")
        dialog.get_by_role("button", name="Split with another adapter").click()
        expect(dialog.get_by_role("button", name="Move", exact=True)).to_be_disabled()
        dialog.get_by_role("combobox", name="Adapter 2").select_option(shown.other)
        dialog.get_by_label("Weight 1").fill("90")
        dialog.get_by_label("Why").fill("a tenth tries it")
        assert shown.targets(name) == [(shown.first, 100)]
        dialog.get_by_role("button", name="Move", exact=True).click()
        page.get_by_role("region", name="Points to").get_by_text("10.0 %").wait_for()
        assert sorted(shown.targets(name)) == sorted([(shown.first, 90), (shown.other, 10)])
        page.get_by_role("row", name="a tenth tries it").wait_for()
        dialog = open_dialog(page, "Roll back…")
        expect(dialog.get_by_title(shown.other)).to_be_visible()
        dialog.get_by_role("button", name="Back", exact=True).click()
        assert len(shown.history(name)) == 2, "nothing moves before it is confirmed"
        dialog = open_dialog(page, "Roll back…")
        dialog.get_by_label("Why").fill("it was worse")
        dialog.get_by_role("button", name="Roll back", exact=True).click()
        page.get_by_role("row", name="it was worse").wait_for()
        assert shown.targets(name) == [(shown.first, 100)]
        page.get_by_role("button", name="Back to this: version 2").click()
        page.get_by_role("dialog").get_by_role("button", name="Roll back", exact=True).click()
        page.get_by_role("region", name="Points to").get_by_text("10.0 %").wait_for()
    assert [move["verb"] for move in shown.history(name)] == ["rollback", "rollback", "set", "set"]


def test_alias_that_moved_meanwhile_is_not_moved_over(visitor: Visitor, state: StorageState, shown: Shown) -> None:
    name = shown.alias()
    with visitor.visit(state, allowed=frozenset({409}), hash_=f"#/gates/{name}") as (page, _):
        dialog = open_dialog(page, "Move or split")
        dialog.get_by_label("Adapter").select_option(shown.other)
        shown.move(name, shown.other, "somebody was faster")
        dialog.get_by_role("button", name="Move", exact=True).click()
        dialog.get_by_text("It moved meanwhile").wait_for()
        dialog.get_by_text("somebody was faster").wait_for()
        assert len(shown.history(name)) == 2
        dialog.get_by_label("Adapter").select_option(shown.first)
        dialog.get_by_role("button", name="Decide again").click()
        dialog.get_by_role("button", name="Move", exact=True).click()
        page.get_by_role("row", name="3 just now").wait_for()
    assert shown.targets(name) == [(shown.first, 100)]


def test_move_without_evidence_is_refused_and_judged(visitor: Visitor, state: StorageState, shown: Shown) -> None:
    # Of its own, because an earlier receipt under the same policy would do.
    name = shown.governed(POLICY.replace("min_pct: 1", f"min_pct: 1.{secrets.randbelow(10**8):08}"))
    with visitor.visit(state, allowed=frozenset({409}), hash_=f"#/gates/{name}") as (page, _):
        dialog = open_dialog(page, "Move or split")
        dialog.get_by_label("Adapter").select_option(shown.other)
        dialog.get_by_role("button", name="Move", exact=True).click()
        dialog.get_by_text("GATE_MISSING").wait_for()
        dialog.get_by_role("button", name="Back", exact=True).click()
        dialog = open_dialog(page, "Judge an adapter")
        dialog.get_by_label("Adapter").select_option(shown.other)
        dialog.get_by_role("button", name="Judge").click()
        job_id = (dialog.get_by_role("link", name="the job").get_attribute("href") or "").rpartition("/")[2]
        assert shown.installation.wait(job_id, lambda job: job["state"] == "succeeded")
        page.goto(f"{visitor.url}/#/gates?tab=receipts&adapter={shown.other}")
        page.get_by_role("link", name=shown.other[:16]).first.click()
        ratio = page.get_by_role("region", name="Gate supervised_ratio")
        ratio.get_by_text("passed").wait_for()
        ratio.get_by_text("asked 1").wait_for()
        expect(page.get_by_role("region", name="Gate truncation").get_by_text("tells, does not block")).to_be_visible()
        page.goto(f"{visitor.url}/#/gates/{name}")
        dialog = open_dialog(page, "Move or split")
        dialog.get_by_label("Adapter").select_option(shown.other)
        dialog.get_by_role("button", name="Move", exact=True).click()
        page.get_by_role("row", name="receipt").get_by_role("link", name="receipt").wait_for()
    assert shown.targets(name) == [(shown.other, 100)]


def test_forced_move_takes_the_name_and_a_reason(visitor: Visitor, state: StorageState, shown: Shown) -> None:
    name = shown.governed()
    with visitor.visit(state, hash_=f"#/gates/{name}") as (page, _):
        dialog = open_dialog(page, "Move or split")
        dialog.get_by_label("Adapter").select_option(shown.other)
        dialog.get_by_label("move without the evidence").check()
        move = dialog.get_by_role("button", name="Move", exact=True)
        dialog.get_by_label("Type the alias's name").fill(name)
        expect(move).to_be_disabled()
        dialog.get_by_label("Why", exact=True).fill("an emergency")
        dialog.get_by_label("Type the alias's name").fill(name[:-1])
        expect(move).to_be_disabled()
        dialog.get_by_label("Type the alias's name").fill(name)
        move.click()
        page.get_by_role("row", name="an emergency").get_by_text("override").wait_for()
    assert shown.history(name)[0]["gate"]["override"] is True


def test_policy_is_assigned_by_an_admin(visitor: Visitor, state: StorageState, shown: Shown) -> None:
    shown.governed()
    name = shown.alias()
    with visitor.visit(state, hash_="#/gates?tab=policies") as (page, _):
        page.get_by_role("region", name="Policy support").first.get_by_text("min_pct 1").wait_for()
        dialog = open_dialog(page, "Assign a policy")
        dialog.get_by_role("combobox", name="To").select_option(f"alias:{name}")
        dialog.get_by_role("combobox", name="Policy").select_option("support")
        dialog.get_by_role("button", name="Assign").click()
        page.get_by_role("row", name=f"alias:{name}").get_by_text("support").wait_for()


def test_each_role_may_what_it_may(visitor: Visitor, states: dict[str, StorageState], shown: Shown) -> None:
    name = shown.governed()
    free = shown.alias()
    other = POLICY.replace("min_pct: 1", "min_pct: 2")
    shown.installation.call("POST", "/v1/policies", json={"name": "other", "source": other})
    forced = {"adapter": shown.other, "override": True, "reason": "because"}
    plain = {"adapter": shown.other}
    with visitor.visit(states["viewer"], allowed=frozenset({403}), hash_=f"#/gates/{name}") as (page, _):
        page.get_by_text("Moving it needs the role trainer; you have viewer.").wait_for()
        for button in ("Move or split", "Roll back…", "Judge an adapter"):
            expect(page.get_by_role("button", name=button)).to_be_disabled()
        assert ask(page, "PUT", f"/v1/aliases/{free}", plain) == 403
        assert ask(page, "POST", f"/v1/aliases/{free}/rollback", {}) == 403
        assert ask(page, "POST", "/v1/receipts", {"adapter": shown.other, "alias": name}) == 403
        assert ask(page, "PUT", f"/v1/policy_assignments/alias:{free}", {"policy": "support"}) == 403
        page.goto(f"{visitor.url}/#/gates?tab=policies")
        page.get_by_role("button", name="Assign a policy").wait_for()
        expect(page.get_by_role("button", name="Assign a policy")).to_be_disabled()
    with visitor.visit(states["trainer"], allowed=frozenset({403}), hash_=f"#/gates/{name}") as (page, _):
        dialog = open_dialog(page, "Move or split")
        dialog.get_by_text("needs the role admin; you have trainer").wait_for()
        expect(dialog.get_by_label("move without the evidence")).to_be_disabled()
        assert ask(page, "PUT", f"/v1/aliases/{name}", forced) == 403
        assert ask(page, "PUT", "/v1/policy_assignments/tenant", {"policy": "support"}) == 403
        assert ask(page, "PUT", f"/v1/policy_assignments/alias:{name}", {"policy": "other"}) == 403
        assert ask(page, "PUT", f"/v1/aliases/{free}", plain) == 200
        assert ask(page, "POST", f"/v1/aliases/{free}/rollback", {}) == 200
    with visitor.visit(states["admin"]) as (page, _):
        assert ask(page, "PUT", f"/v1/aliases/{name}", forced) == 200


def test_hostile_names_and_reasons_are_text(visitor: Visitor, state: StorageState, shown: Shown) -> None:
    name = shown.alias()

    def answer(route: Route) -> None:
        found = route.fetch().json()
        (move, *_) = found["data"]
        found["data"] = [
            {**move, "version": 100 - place, "actor": text, "reason": text} for place, text in enumerate(HOSTILE)
        ]
        route.fulfill(content_type="application/json", body=json.dumps(found))

    with visitor.visit(state, hash_="#/gates") as (page, _):
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.route("**/v1/aliases/*/history?*", answer)
        page.goto(f"{visitor.url}/#/gates/{name}")
        rows = page.get_by_role("region", name="Moves").get_by_role("row")
        rows.nth(len(HOSTILE)).wait_for()
        expect(rows.nth(1)).to_contain_text(HOSTILE[0])
        expect(rows.nth(4)).to_contain_text("\\u202egnp.exe")
        expect(page.locator("main img, main script")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_unknown_alias_and_receipt_say_so(visitor: Visitor, state: StorageState) -> None:
    with visitor.visit(state, allowed=frozenset({404}), hash_="#/gates/nobody") as (page, _):
        page.get_by_text("Alias not found.").wait_for()
        page.goto(f"{visitor.url}/#/gates?tab=receipts&receipt=receipt-nothing")
        page.get_by_text("Receipt not found.").wait_for()
