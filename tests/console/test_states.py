"""States of screens besides the usual one: while they load, without the API, and refused; axe-core finds no fault in
them, in both colour schemes.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.console.browser import PHONE, Visitor, findings

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route, StorageState

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

DATA = re.compile(r"/v1/(?!me$|events$|sign_ins/)")
"""Paths of requests for what a screen shows."""
SCREENS = {
    "jobs": "#/jobs",
    "run": "#/runs/{tuned}",
    "compare": "#/compare?jobs={slower},{tuned}",
    "files": "#/files",
    "file": "#/files/{file}",
    "evals": "#/evals",
    "eval-runs": "#/evals/{eval}",
    "eval-items": "#/evals/{eval}/{evaluated}",
    "gates": "#/gates",
    "alias": "#/gates/support",
    "policies": "#/gates?tab=policies",
    "receipts": "#/gates?tab=receipts",
    "receipt": "#/gates?tab=receipts&receipt={receipt}",
    "playground": "#/playground",
    "usage": "#/usage",
    "system": "#/usage?tab=system",
    "sign-ins": "#/usage?tab=sign-ins",
}
STALE = ("jobs", "compare", "run", "gates", "alias", "usage", "sign-ins")
"""Screens that show for how long they have not been confirmed."""
REFUSAL = {
    "message": "Reading this needs a key with the role 'admin'. Ask an admin.",
    "mens": {"code": "ROLE_INSUFFICIENT", "remedy": "Ask an admin.", "retryable": False},
}
FOR_ROLES = {
    "run": ("#/runs/{tuned}?tab=log", "needs the role trainer; you have viewer"),
    "new": ("#/new?data.train_file={file}", "Training needs the role trainer"),
    "files": ("#/files", "needs the role trainer; you have viewer"),
    "file": ("#/files/{file}", "Train on it"),
    "alias": ("#/gates/support", "Moving it needs the role trainer"),
    "system": ("#/usage?tab=system", "For operators"),
    "usage": ("#/usage?by=tenant", "Your key"),
}
"""Screens for a viewer, and the text that stands for what they may not do."""


@pytest.fixture
def ids(tuned: dict[str, Any], slower: dict[str, Any], receipt: str, evaluated: tuple[str, str]) -> dict[str, str]:
    """Ids that the addresses of screens name."""
    return {
        "tuned": tuned["id"],
        "slower": slower["id"],
        "file": tuned["contract"]["data"]["train_file"],
        "receipt": receipt,
        "eval": evaluated[0],
        "evaluated": evaluated[1],
    }


def faults_of(page: Page, name: str) -> list[str]:
    """Findings of axe-core in both colour schemes, and whether the page is wider than its window."""
    faults = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        faults += [f"{name}, {scheme}: {fault}" for fault in findings(page)]
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        faults.append(f"{name} is wider than the window")
    return faults


def test_screens_that_load_are_for_everyone(visitor: Visitor, state: StorageState, ids: dict[str, str]) -> None:
    faults = []
    with visitor.visit(state, hash_="#/nowhere") as (page, _):
        page.locator(".connection.live").wait_for()
        page.route(DATA, lambda route: None)  # is never answered
        for name, address in SCREENS.items():
            page.goto(f"{visitor.url}/{address.format(**ids)}")
            page.reload()
            page.get_by_role("status").get_by_text("Loading").first.wait_for(state="attached")
            faults += faults_of(page, name)
    assert not faults, "\n".join(faults)


def test_screens_without_the_api_say_how_old_they_are_to_everyone(
    visitor: Visitor, state: StorageState, ids: dict[str, str]
) -> None:
    faults = []
    for name in STALE:
        with visitor.visit(state, size=PHONE, hash_=SCREENS[name].format(**ids)) as (page, watch):
            page.locator("main :is(tbody tr, canvas, .card)").first.wait_for()
            page.locator(".connection.live").wait_for()
            watch.is_offline = True
            page.route("**/v1/**", lambda route: route.abort())
            page.evaluate("dispatchEvent(new Event('offline'))")
            page.locator(".connection.stale").wait_for(timeout=60_000)
            if name == "jobs":
                expect(page.locator("table.old")).to_be_visible()
            expect(page.get_by_role("status").get_by_text("Mens does not answer. This is from")).to_be_visible()
            faults += faults_of(page, name)
    assert not faults, "\n".join(faults)


def test_refused_screens_say_why_to_everyone(visitor: Visitor, state: StorageState, ids: dict[str, str]) -> None:
    def refuse(route: Route) -> None:
        body = json.dumps({"error": REFUSAL})
        headers = {"x-request-id": "req-1"}
        route.fulfill(status=403, content_type="application/json", headers=headers, body=body)

    faults = []
    with visitor.visit(state, allowed=frozenset({403}), hash_="#/nowhere") as (page, _):
        page.locator(".connection.live").wait_for()
        page.route(DATA, refuse)
        for name, address in SCREENS.items():
            page.goto(f"{visitor.url}/{address.format(**ids)}")
            page.reload()
            refusal = page.get_by_role("alert").first
            for text in ("ROLE_INSUFFICIENT", "Ask an admin.", "req-1"):
                expect(refusal.get_by_text(text, exact=True)).to_be_visible()
            faults += faults_of(page, name)
    assert not faults, "\n".join(faults)


def test_what_a_viewer_may_not_do_is_said_to_everyone(
    visitor: Visitor, states: dict[str, StorageState], ids: dict[str, str]
) -> None:
    faults = []
    with visitor.visit(states["viewer"], allowed=frozenset({403}), hash_="#/nowhere") as (page, _):
        page.locator(".connection.live").wait_for()
        for name, (address, text) in FOR_ROLES.items():
            page.goto(f"{visitor.url}/{address.format(**ids)}")
            expect(page.get_by_text(text).or_(page.get_by_title(text)).first).to_be_visible()
            faults += faults_of(page, name)
    assert not faults, "\n".join(faults)
