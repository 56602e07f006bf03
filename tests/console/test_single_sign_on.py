"""Single sign-on in Chromium with a certified identity provider: in and out, a person without a role, an unavailable
provider.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from api.services import make_services
from api.settings import ApiSettings, SignInRule
from cli.standalone.ports import free_port
from shared.database.tenancy import Role
from tests.console.browser import Visitor, Watch, findings, need_chromium, routes_of, sign_in
from tests.support.api_installation import application_of, settings_for
from tests.support.api_server import make_server
from tests.support.asgi_server import run_server
from tests.support.doubles import FakeJobQueue
from tests.support.tiny_base import write_base
from tests.system.fetched import identity_provider

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]
CLIENT, SECRET = "mens", "c1ient-secret"
BUTTON = "Single sign-on"


@dataclass
class Company:
    """An API, a browser, and the identity provider that its people sign in through."""

    visitor: Visitor
    issuer: str
    key: str
    provider: subprocess.Popen[str]


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Company]:
    home, port = tmp_path_factory.mktemp("company"), free_port()
    found = {
        "public_url": "",
        "oidc_issuer": f"http://127.0.0.1:{port}",
        "oidc_client_id": CLIENT,
        "oidc_client_secret": SECRET,
        "oidc_scopes": "openid email groups",
        "oidc_rules": [SignInRule(group="ml", tenant="acme", role=Role.TRAINER)],
    }
    settings = ApiSettings.model_validate({**settings_for(home, write_base(home / "base")).model_dump(), **found})
    shutil.copy(sqlite_template, home / "mens.db")
    services = make_services(settings, job_queue=FakeJobQueue())
    assert services.identity_provider
    app = application_of(services)
    node = shutil.which("node")
    assert node, "node runs the identity provider (Debian: apt-get install nodejs)"
    for url in run_server(make_server(app, settings)):
        command = [node, str(identity_provider()), str(port), CLIENT, SECRET, url]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as provider,
            sync_playwright() as playwright,
        ):
            assert provider.stdout
            assert provider.stdout.readline() == "listening\n"
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = playwright.chromium.launch(executable_path=need_chromium(), args=arguments)
            key = services.keys.create("robin", "acme")[1]
            yield Company(Visitor(browser, url, routes_of(app.openapi())), found["oidc_issuer"], key, provider)
            browser.close()
            provider.kill()
    services.identity_provider.close()
    services.database.close()


def go_through(page: Page, person: str) -> None:
    """Press the button, and sign in on the provider's own pages."""
    page.get_by_role("button", name=BUTTON).click()
    page.locator("[name=login]").fill(person)
    page.locator("[name=password]").fill("any")
    page.locator("[type=submit]").click()
    page.get_by_role("button", name="Continue").click()  # consent


def test_person_signs_in_at_the_provider_and_out_again(company: Company) -> None:
    with company.visitor.visit(hash_="#/jobs?q=invoice", friend=company.issuer, allowed=frozenset({401})) as (page, _):
        go_through(page, "alice")
        page.get_by_role("navigation", name="Screens").wait_for()
        page.wait_for_url(f"{company.visitor.url}/#/jobs?q=invoice")  # the address that was wanted, without the answer
        page.locator("details.menu summary").click()
        page.get_by_text("trainer in acme").wait_for()
        kept = page.context.storage_state()
        assert not page.evaluate("sessionStorage.length")
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("button", name="Yes, sign me out").click()  # the provider asks
        page.get_by_role("button", name=BUTTON).click()  # and its own session has ended: it asks who it is
        page.locator("[name=login]").wait_for()
    with company.visitor.visit(kept, allowed=frozenset({401})) as (page, _):
        page.get_by_label("API key").wait_for()


def handed_in(watch: Watch) -> list[str]:
    """Bodies of the provider's answers that a page has handed in."""
    return [request.post_data or "" for request in watch.requests if request.url.endswith("/v1/sign_in/oidc/callback")]


def test_answer_that_was_carried_to_another_browser_signs_nobody_in(company: Company) -> None:
    with company.visitor.visit(friend=company.issuer) as (page, watch):
        # So that the answer is not used up here: the browser that has begun forgets its half.
        page.add_init_script("sessionStorage.clear()")
        go_through(page, "alice")
        page.get_by_role("alert").get_by_text("SIGN_IN_STATE_INVALID").wait_for()
        (carried,) = (request.url for request in watch.requests if "/console/callback?" in request.url)
    with company.visitor.visit() as (page, other):
        page.goto(carried)
        page.get_by_role("alert").get_by_text("SIGN_IN_STATE_INVALID").wait_for()
        page.wait_for_url(f"{company.visitor.url}/#/jobs")
    assert not handed_in(watch) + handed_in(other)  # a page without its half sends nothing in place of it


def test_person_without_a_role_learns_whom_to_ask(company: Company) -> None:
    with company.visitor.visit(friend=company.issuer, allowed=frozenset({403})) as (page, _):
        go_through(page, "mallory")
        alert = page.get_by_role("alert")
        alert.get_by_text("SIGN_IN_NO_ROLE").wait_for()
        expect(alert.locator("p").last).to_contain_text("Ask an operator")


def test_key_signs_in_while_the_provider_is_away_and_no_answer_counts_after_it(company: Company) -> None:
    """The last test: the provider does not come back."""
    company.provider.kill()
    company.provider.wait()
    with company.visitor.visit(friend=company.issuer, allowed=frozenset({401})) as (page, watch):
        page.get_by_role("button", name=BUTTON).wait_for()
        assert not findings(page)
        sign_in(page, company.key)
        # An answer for who is signed in is dropped, and not handed in after they have signed out.
        page.goto(f"{company.visitor.url}/console/callback?state=s&code=c")
        page.get_by_role("navigation", name="Screens").wait_for()
        page.evaluate("sessionStorage.setItem('mens.pending_sign_in', JSON.stringify({half: 'h'.repeat(64)}))")
        # A late refusal of an earlier sign-in does not end the one of now.
        page.route(lambda url: url.endswith("?late"), lambda route: route.fulfill(status=401, json={}))
        kept = page.evaluate("""async () => {
          const { $lib_client } = await import(document.querySelector("script[src$='/first_screen.js']").src);
          const { call } = $lib_client;
          const half = localStorage.getItem("mens.sign_in");
          localStorage.setItem("mens.sign_in", "e".repeat(64));
          const late = call("/v1/me?late").catch((error) => error.status);
          localStorage.setItem("mens.sign_in", half);
          return [await late, localStorage.getItem("mens.sign_in") === half];
        }""")
        assert kept == [401, True]
        page.locator("details.menu summary").click()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("button", name=BUTTON).wait_for()
        assert not handed_in(watch)
