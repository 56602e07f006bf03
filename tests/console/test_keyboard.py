"""The whole way by keys alone: sign in, start a run, read it, compare it, make an eval and run it. Wherever the keyboard
stops, something shows it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Locator, expect

from tests.console.browser import Visitor
from tests.system.loop import Installation, short_lesson

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

MOST_STOPS = 120
"""Presses of Tab until something that people need."""
STOP = """() => {
  const element = document.activeElement;
  const isDrawn = (one) => one && getComputedStyle(one).outlineStyle !== "none" && parseFloat(getComputedStyle(one).outlineWidth) > 0;
  const box = element.getBoundingClientRect();
  const isSeen = isDrawn(element) || isDrawn(element.closest("label"));
  const isInView = box.bottom > 0 && box.top < innerHeight;
  return [element.tagName, isSeen && isInView, element.outerHTML.slice(0, 160)];
}"""


def has_focus(target: Locator) -> bool:
    return bool(target.count()) and bool(target.first.evaluate("(one) => one === document.activeElement"))


def reach(page: Page, target: Locator) -> None:
    """Press Tab until something has the focus; each stop on the way has a ring, and is in the window."""
    target.first.wait_for(state="attached")
    expect(target.first).to_be_enabled()
    stops = []
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        tag, is_seen, what = page.evaluate(STOP)
        stops.append(what)
        if tag != "BODY":
            assert is_seen, f"nothing shows the focus: {what}"
        if has_focus(target):
            return
    raise AssertionError(f"Tab does not reach {target}, but {stops}")


def choose(page: Page, select: Locator, value: str) -> None:
    """Press the arrow until a list has a value."""
    reach(page, select)
    page.keyboard.press("Home")
    values = select.locator("option:not([disabled])").evaluate_all("(all) => all.map((one) => one.value)")
    for _ in range(values.index(value)):
        page.keyboard.press("ArrowDown")
    expect(select).to_have_value(value)


def press(page: Page, target: Locator, key: str = "Enter") -> None:
    reach(page, target)
    page.keyboard.press(key)


def test_people_come_from_the_sign_in_to_a_compared_run_and_an_eval_by_keys_alone(
    visitor: Visitor, installation: Installation, tuned: dict[str, Any]
) -> None:
    lesson = installation.upload_bytes("lesson.jsonl", short_lesson())
    screens = ("Jobs", "Evals")
    with visitor.visit() as (page, _):
        page.get_by_label("API key").wait_for()
        reach(page, page.get_by_label("API key"))
        page.keyboard.type(installation.connection.key)
        page.keyboard.press("Enter")
        links = page.get_by_role("navigation", name="Screens").get_by_role("link")
        links.first.wait_for()
        jobs, evals = (links.filter(has_text=re.compile(f"^{name}$")) for name in screens)

        press(page, page.get_by_role("link", name="New run"))
        choose(page, page.get_by_label("Training file"), lesson)
        reach(page, page.get_by_label("Epochs"))
        page.keyboard.type("500")
        reach(page, page.get_by_label("Name"))
        page.keyboard.type("by-keys")
        press(page, page.get_by_text("More settings"), "Space")
        choose(page, page.get_by_label("Serve the result"), "false")
        page.locator(".submit", has_text="It enters the queue").wait_for()
        press(page, page.get_by_role("button", name="Start training"))

        page.get_by_role("heading", name="by-keys").wait_for()
        job_id = page.url.rpartition("/")[2].partition("?")[0]
        expect(page.locator("#content")).to_be_focused()  # the button is gone
        press(page, page.get_by_role("button", name="Cancel"))
        dialog = page.get_by_role("dialog", name="Confirm")
        press(page, dialog.get_by_role("button", name="Back"))
        expect(page.get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press("Enter")
        dialog.wait_for()
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press("Enter")
        press(page, dialog.get_by_role("button", name="Cancel the run"))
        expect(page.locator(".run-head .badge")).to_have_text(re.compile("cancelled"))
        expect(page.locator("#content")).to_be_focused()  # nothing is left to cancel
        press(page, page.get_by_role("link", name="plan", exact=True))
        page.get_by_role("row", name="exec.epochs").wait_for()
        press(page, page.get_by_role("button", name="Copy as…"))
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Copy as…")).to_be_focused()

        press(page, jobs)
        for chosen in (job_id, tuned["id"]):
            row = page.locator("tr", has=page.locator(f'a[href="#/runs/{chosen}"]'))
            press(page, row.get_by_role("checkbox"), "Space")
        press(page, page.get_by_role("group", name="Chosen jobs").get_by_role("link", name="Compare"))
        page.get_by_role("heading", name="2 runs").wait_for()
        press(page, page.get_by_role("link", name="settings"))
        page.get_by_role("row", name="exec.epochs").wait_for()

        press(page, evals)
        press(page, page.get_by_role("link", name="New eval"))
        choose(page, page.get_by_label("File", exact=True), lesson)
        expect(page.get_by_label("Question")).to_have_value("messages")
        reach(page, page.get_by_label("Name"))
        page.keyboard.type("By keys")
        choose(page, page.get_by_role("combobox", name="Check 1", exact=True), "icontains")
        press(page, page.get_by_role("button", name="Create eval"))
        page.get_by_role("heading", name="New run of By keys").wait_for()
        choose(page, page.get_by_label("Model", exact=True), "invoices")
        reach(page, page.get_by_label("Most tokens"))
        page.keyboard.type("8")
        press(page, page.get_by_role("button", name="Start run"))
        page.wait_for_url("**/ftjob-**")
        page.get_by_role("region", name="Result").wait_for()
