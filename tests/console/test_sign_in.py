"""Signing in with a key and with a link's code, and signing out. The key is stored nowhere, and one half alone is
refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.console.browser import Visitor, sign_in
from tests.system.loop import Installation

if TYPE_CHECKING:
    from playwright.sync_api import StorageState

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


def test_key_signs_in_and_the_wanted_address_is_kept(
    visitor: Visitor, installation: Installation, tuned: dict[str, Any]
) -> None:
    key = installation.connection.key
    with visitor.visit(hash_=f"#/runs/{tuned['id']}") as (page, _):
        sign_in(page, key)
        page.get_by_role("heading", name="invoices", exact=True).wait_for()
        kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])")
    assert key not in kept


def test_wrong_key_is_refused_with_what_to_do(visitor: Visitor) -> None:
    with visitor.visit(allowed=frozenset({401})) as (page, _):
        page.get_by_label("API key").fill("mens-wrong")
        page.get_by_role("button", name="Sign in").click()
        alert = page.get_by_role("alert")
        alert.get_by_text("KEY_INVALID").wait_for()
        expect(alert.locator("p").last).to_contain_text("mens keys create NAME")


def test_code_of_a_link_leaves_the_address_at_once_and_needs_a_click(
    visitor: Visitor, installation: Installation
) -> None:
    code = installation.call("POST", "/v1/sign_in_codes")["code"]
    with visitor.visit(hash_=f"#code={code}") as (page, watch):
        button = page.get_by_role("button", name="Sign in with the code")
        button.wait_for()
        assert code not in page.url
        assert not [request for request in watch.requests if request.method == "POST"]
        button.click()
        page.get_by_role("heading", name="Jobs").wait_for()


def test_link_pasted_into_an_open_tab_signs_in(visitor: Visitor, installation: Installation) -> None:
    """The browser loads nothing then: only the part after `#` differs."""
    with visitor.visit() as (page, _):
        page.get_by_label("API key").wait_for()
        code = installation.call("POST", "/v1/sign_in_codes")["code"]
        page.evaluate(f"location.hash = '#code={code}'")
        page.get_by_role("button", name="Sign in with the code").click()
        page.get_by_role("heading", name="Jobs").wait_for()
        assert code not in page.url


def test_sign_out_ends_both_halves(visitor: Visitor, installation: Installation) -> None:
    with visitor.visit(allowed=frozenset({401})) as (page, _):
        sign_in(page, installation.connection.key)
        kept = page.context.storage_state()
        page.locator("details.menu summary").click()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("API key").wait_for()
    with visitor.visit(kept, allowed=frozenset({401})) as (page, _):  # the server has forgotten it too
        page.get_by_label("API key").wait_for()


def test_one_half_alone_opens_nothing(visitor: Visitor, state: StorageState) -> None:
    without_token: StorageState = {"cookies": state["cookies"], "origins": []}
    with visitor.visit(without_token) as (page, _):
        page.get_by_label("API key").wait_for()
    without_cookie: StorageState = {"cookies": [], "origins": state["origins"]}
    with visitor.visit(without_cookie, allowed=frozenset({401})) as (page, _):
        page.get_by_label("API key").wait_for()


def test_viewer_sees_why_a_button_is_grey(visitor: Visitor, installation: Installation, tuned: dict[str, Any]) -> None:
    key = installation.call("POST", "/v1/keys", json={"name": "reader", "role": "viewer"})
    with visitor.visit(hash_=f"#/runs/{tuned['id']}?tab=log") as (page, _):
        sign_in(page, key["secret"])
        page.get_by_text("needs the role trainer; you have viewer").wait_for()
