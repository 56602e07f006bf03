"""Comparing runs: selected in the list, curves overlaid, settings that differ, answers, the baseline; hostile names are
shown as text.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.console.browser import HOSTILE, Visitor, ask

if TYPE_CHECKING:
    from playwright.sync_api import Route, StorageState

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


@pytest.fixture
def address(tuned: dict[str, Any], slower: dict[str, Any]) -> str:
    return f"#/compare?jobs={slower['id']},{tuned['id']}"


def test_runs_are_chosen_in_the_list_by_keyboard_alone(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any], slower: dict[str, Any]
) -> None:
    with visitor.visit(state, hash_="#/jobs?q=invoices") as (page, _):
        for job in (slower, tuned):
            page.locator(f'a.name[href="#/runs/{job["id"]}"]').focus()
            page.keyboard.press("x")
        page.get_by_role("group", name="Chosen jobs").get_by_text("2 chosen").wait_for()
        page.wait_for_url(lambda url: f"chosen={slower['id']}%2C{tuned['id']}" in url)
        page.keyboard.press("c")
        page.get_by_role("heading", name="2 runs").wait_for()
        page.wait_for_url(lambda url: "#/compare?jobs=" in url)
        page.get_by_role("link", name="Choose others").click()
        page.get_by_role("group", name="Chosen jobs").get_by_text("2 chosen").wait_for()
        expect(page.get_by_role("checkbox", checked=True)).to_have_count(2)


def test_curves_are_overlaid_and_results_stand_side_by_side(
    visitor: Visitor, state: StorageState, address: str, tuned: dict[str, Any], slower: dict[str, Any]
) -> None:
    with visitor.visit(state, hash_=address) as (page, _):
        curves = page.get_by_role("region", name="Curves")
        curves.locator("canvas").wait_for()
        curves.get_by_text("Values as a table").click()
        table = curves.get_by_role("table")
        names = [f"{job['name']} …{job['id'][-6:]}" for job in (slower, tuned)]
        expect(table.get_by_role("columnheader")).to_have_text(["step", *names])
        page.get_by_role("combobox", name="curve").select_option("learning_rate")
        curves.get_by_role("group", name="Learning rate: arrow keys").wait_for()
        page.get_by_label("log scale").check()
        page.wait_for_url(lambda url: "series=learning_rate" in url)
        page.wait_for_url(lambda url: "log=1" in url)
        page.reload()
        curves.locator("canvas").wait_for()
        losses = page.get_by_role("row", name="Training loss, last")
        for job in (slower, tuned):
            expect(losses.get_by_text(f"{job['result']['last_train_loss']:.4f}")).to_be_visible()
        expect(page.get_by_role("row", name="Memory, peak")).to_be_visible()
        expect(page.get_by_role("row", name=re.compile("^Time "))).to_be_visible()


def test_change_against_the_baseline_says_whether_it_is_better(
    visitor: Visitor, state: StorageState, address: str, tuned: dict[str, Any], slower: dict[str, Any]
) -> None:
    """In words, which a screen reader reads, and not only by a sign."""
    losses = [job["result"]["last_train_loss"] for job in (slower, tuned)]
    assert losses[0] > losses[1], "the slower run has learnt less"
    with visitor.visit(state, hash_=f"{address}&base={tuned['id']}") as (page, _):
        cells = page.get_by_role("row", name="Training loss, last").get_by_role("cell")
        expect(cells.first).to_contain_text(re.compile(r"(\+[\d.]+ %|[\d,]+ times), worse"))
        expect(cells.last).not_to_contain_text("%")
        page.get_by_role("button", name="make it the baseline: invoices-low").click()
        expect(cells.last).to_contain_text(re.compile(r"\u2212[\d.]+ %, better"))
        expect(page.get_by_role("row", name="Steps", exact=False).first).not_to_contain_text("better")


def test_settings_that_differ_say_who_decided_them(visitor: Visitor, state: StorageState, address: str) -> None:
    with visitor.visit(state, hash_=f"{address}&tab=settings") as (page, _):
        rate = page.get_by_role("row", name="exec.learning_rate")
        rate.wait_for()
        expect(rate.get_by_role("cell")).to_have_text(["differs: 0.001you", "0.004you"])
        expect(page.get_by_role("row", name="exec.batch_size")).to_have_count(0)
        page.get_by_label("equal ones too").check()
        page.get_by_role("row", name="exec.batch_size").wait_for()
        page.wait_for_url(lambda url: "all=1" in url)


def test_baseline_is_the_incumbent_until_another_is_pinned(
    visitor: Visitor, state: StorageState, address: str, tuned: dict[str, Any], slower: dict[str, Any]
) -> None:
    with visitor.visit(state, hash_=address) as (page, _):
        runs = page.get_by_role("list", name="Runs").get_by_role("listitem")
        baseline = runs.filter(has_text="baseline").filter(has_not=page.get_by_role("button", name="baseline"))
        baseline.get_by_text(tuned["id"][-6:]).wait_for()
        page.get_by_role("button", name="the baseline").click()
        baseline.get_by_text(slower["id"][-6:]).wait_for()
        page.wait_for_url(lambda url: f"base={slower['id']}" in url)
        page.get_by_role("button", name="Leave out invoices-low").click()
        page.get_by_role("heading", name="Choose two runs or more").wait_for()


def test_answers_stand_next_to_base_and_reference(
    visitor: Visitor, state: StorageState, address: str, tuned: dict[str, Any]
) -> None:
    (sample, *_) = tuned["result"]["self_evaluation"]["sample_answers"]
    with visitor.visit(state, hash_=f"{address}&tab=answers") as (page, _):
        row = page.get_by_role("article").filter(has_text=sample["prompt"]).first
        row.get_by_role("heading", name="Base: mens-tiny").wait_for()
        for text in (sample["reference"], sample["base"], sample["tuned"]):
            expect(row.get_by_text(text.strip(), exact=True).first).to_be_visible()


def test_runs_of_nobody_are_a_refusal_and_a_viewer_may_compare(
    visitor: Visitor, states: dict[str, StorageState], address: str, tuned: dict[str, Any]
) -> None:
    with visitor.visit(states["viewer"], hash_=address) as (page, _):
        page.get_by_role("heading", name="2 runs").wait_for()
        assert ask(page, "POST", "/v1/plans:compare", {"jobs": [tuned["id"]]}) == 200
        page.get_by_role("button", name="Copy as…").click()
        dialog = page.get_by_role("dialog", name="Copy as")
        expect(dialog.get_by_label("mens", exact=True)).to_have_text(re.compile("^mens jobs compare ftjob-"))
        expect(dialog.get_by_label("Python", exact=True)).to_contain_text("/v1/plans:compare")
    unknown = f"#/compare?jobs={tuned['id']},ftjob-nothing"
    with visitor.visit(states["viewer"], allowed=frozenset({404}), hash_=unknown) as (page, _):
        page.get_by_text("One of these runs is not here.").wait_for()


def test_twenty_runs_with_hostile_names_are_text(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any], slower: dict[str, Any]
) -> None:
    ids = [f"ftjob-{place:06}" for place in range(20)]

    def answer(route: Route) -> None:
        found = route.fetch(post_data=json.dumps({"jobs": [slower["id"], tuned["id"]]})).json()
        job, spread = found["jobs"][0], lambda values: [values[place % 2] for place in range(20)]
        found["jobs"] = [{**job, "id": one, "name": HOSTILE[place % len(HOSTILE)]} for place, one in enumerate(ids)]
        found["baseline"] = ids[0]
        for row in found["rows"]:
            row |= {"values": spread(row["values"]), "sources": spread(row["sources"])}
        for row in found["results"]:
            row["values"] = spread(row["values"])
        route.fulfill(content_type="application/json", body=json.dumps(found))

    def curve(route: Route) -> None:
        series = {"train_loss": {"step": [1, 2], "value": [2.0, 1.0]}}
        route.fulfill(content_type="application/json", body=json.dumps({"series": series, "attempts": []}))

    with visitor.visit(state, hash_="#/jobs") as (page, _):
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.route("**/v1/plans:compare", answer)
        page.route("**/v1/jobs/*/metrics?*", curve)
        page.goto(f"{visitor.url}/#/compare?jobs={','.join(ids)}")
        names = page.get_by_role("list", name="Runs").get_by_role("link")
        names.nth(19).wait_for()
        texts = names.all_text_contents()
        assert texts[0] == f"{HOSTILE[0]} …000000"
        assert texts[3].startswith("\\u202egnp.exe")
        assert len(texts[4]) < 60
        page.get_by_role("region", name="Curves").locator("canvas").wait_for()
        expect(page.locator("main img, main script")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
