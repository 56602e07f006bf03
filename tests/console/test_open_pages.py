"""Pages that stay open: a long list, many tabs, no stream, a revoked key, an API that is killed. Only counts;
`bench/console.py` measures times.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from api.polling.job_changes import OVERLAP
from tests.console.browser import Visitor, Watch, sign_in
from tests.system.loop import Installation

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route, StorageState

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

JOBS, PAGE, MOST_DRAWN = 10_000, 50, 200
READ_PAGES = 12
"""Pages of the long list: enough that some of their rows are no longer drawn."""
NAME = "invoices"
TABS = 8
"""More than a browser's six connections for a host."""
CALLS_A_MINUTE = 12
ANSWER_TICKS = 1_500
"""Longest duration of a request, in steps of 20 ms, before the page's clock continues."""


def test_long_list_draws_few_rows_and_asks_once_for_each_page(
    visitor: Visitor, installation: Installation, state: StorageState, tuned: dict[str, Any]
) -> None:
    summary = installation.call("GET", "/v1/jobs", params={"view": "summary", "limit": 1})["data"][0]
    asked = []

    def answer(route: Route) -> None:
        after = parse_qs(urlsplit(route.request.url).query).get("after", ["ftjob--1"])[0]
        first = int(after.removeprefix("ftjob-")) + 1
        asked.append(first)
        rows = [summary | {"id": f"ftjob-{number}", "name": f"run-{number}"} for number in range(first, first + PAGE)]
        page_of_jobs = {"object": "list", "data": rows, "has_more": first + PAGE < JOBS}
        route.fulfill(content_type="application/json", body=json.dumps(page_of_jobs))

    with visitor.visit(state, hash_="#/playground") as (page, _):
        page.get_by_role("heading", name="Playground").wait_for()
        page.route("**/v1/jobs?*", answer)
        page.keyboard.press("g")
        page.keyboard.press("j")
        page.locator("a.name", has_text="run-0").first.wait_for()
        for number in range(1, READ_PAGES):
            page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
            page.locator(f'tr[aria-rowindex="{number * PAGE + 10}"]').wait_for(state="attached")
            assert page.locator("tbody tr").count() <= MOST_DRAWN
        # A job of the installation that ends meanwhile makes the page read the first one again.
        pages = asked[:1] + [first for first in asked[1:] if first]
        assert pages == [number * PAGE for number in range(len(pages))], "each page once, in order"
        assert READ_PAGES <= len(pages) <= READ_PAGES + 2
        page.evaluate("scrollTo(0, 0)")
        page.locator('tr[aria-rowindex="2"]').wait_for()
        assert page.locator("tbody tr").count() <= MOST_DRAWN
        expect(page.locator("tbody tr a.name").first).to_have_text("run-0")


def test_tabs_share_one_stream_and_another_takes_over(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any]
) -> None:
    with visitor.visit(state) as (page, watch):
        page.locator(".connection.live").wait_for()
        tabs = [page.context.new_page() for _ in range(TABS - 1)]
        for tab in tabs:
            watch.follow(tab)
            tab.goto(f"{visitor.url}/#/jobs")
            tab.locator("a.name").first.wait_for()
            tab.locator(".connection.live").wait_for()

        def streams() -> int:
            return sum(urlsplit(request.url).path == "/v1/events" for request in watch.requests)

        assert streams() == 1
        before = len(watch.requests)
        with tabs[0].context.expect_event("request", lambda request: urlsplit(request.url).path == "/v1/events"):
            page.close()
        assert streams() == 2
        tabs[-1].wait_for_timeout(2_000)
        assert len(watch.requests) <= before + TABS, [request.url for request in watch.requests[before:]]


def pass_time(page: Page, watch: Watch, seconds: int) -> None:
    """Let time pass for a page whose clock is paused; its requests are answered between the seconds."""
    for _ in range(seconds):
        page.clock.run_for(1_000)
        page.wait_for_timeout(50)
        for _ in range(ANSWER_TICKS):
            if not watch.unanswered:
                break
            page.wait_for_timeout(20)


@pytest.mark.parametrize("screen", ["jobs", "run", "playground"])
def test_page_without_a_stream_makes_few_calls(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any], screen: str
) -> None:
    job = f"/v1/jobs/{tuned['id']}"
    hash_ = {"jobs": "#/jobs", "run": f"#/runs/{tuned['id']}", "playground": "#/playground"}[screen]
    polled = {"jobs": {"/v1/jobs", "/v1/jobs:count"}, "run": {job, f"{job}/metrics"}, "playground": {"/v1/models"}}
    with visitor.visit(state, hash_="#/nowhere") as (page, watch):
        page.locator(".connection.live").wait_for()
        watch.is_offline = True
        page.clock.install()
        page.route("**/v1/events", lambda route: route.abort())
        page.goto(f"{visitor.url}/{hash_}")
        page.reload()
        page.get_by_role("navigation", name="Screens").wait_for()
        page.clock.pause_at(datetime.now(UTC) + timedelta(seconds=30))
        pass_time(page, watch, 30)
        expect(page.locator(".connection")).to_have_text(re.compile("polling"))
        before = len(watch.requests)
        pass_time(page, watch, 60)
        asked = Counter(urlsplit(request.url).path for request in watch.requests[before:])
        assert asked.total() <= CALLS_A_MINUTE, asked
        assert asked["/v1/events"] <= 2, asked
        assert set(asked) - {"/v1/events"} == polled[screen], asked


def test_page_is_live_again_when_streams_get_through(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any]
) -> None:
    with visitor.visit(state) as (page, watch):
        page.locator(".connection.live").wait_for()
        watch.is_offline = True
        page.clock.install()
        page.route("**/v1/events", lambda route: route.abort())
        page.reload()
        page.get_by_role("navigation", name="Screens").wait_for()
        page.clock.pause_at(datetime.now(UTC) + timedelta(seconds=30))
        pass_time(page, watch, 30)
        expect(page.locator(".connection")).to_have_text(re.compile("polling"))
        page.unroute("**/v1/events")
        before = len(watch.requests)
        pass_time(page, watch, 60)
        expect(page.locator(".connection")).to_have_text(re.compile("live"))
        pass_time(page, watch, 5)
        paths = [urlsplit(request.url).path for request in watch.requests[before:]]
        assert "/v1/jobs" in paths[paths.index("/v1/events") :], "what changed before the stream began is read"


def wait_for_quiet(installation: Installation) -> None:
    """Wait until no job has ended so recently that a new stream repeats it."""
    ended = [job["finished_at"] for job in installation.call("GET", "/v1/jobs?view=summary")["data"]]
    last = max(datetime.fromisoformat(moment) for moment in ended if moment)
    time.sleep(max(0.0, (last + OVERLAP + timedelta(seconds=2) - datetime.now(UTC)).total_seconds()))


@pytest.mark.parametrize("screen", ["jobs", "filtered jobs", "run", "zoomed run"])
def test_first_requests_are_made_once(
    visitor: Visitor, installation: Installation, state: StorageState, tuned: dict[str, Any], screen: str
) -> None:
    wait_for_quiet(installation)
    job, run = f"/v1/jobs/{tuned['id']}", f"#/runs/{tuned['id']}"
    lists, parts = {"/v1/jobs", "/v1/jobs:count"}, {job, f"{job}/metrics"}
    hash_, early = {
        "jobs": ("#/jobs", lists),
        "filtered jobs": (f"#/jobs?state=succeeded&since=7&base={tuned['base_model']}", lists),
        "run": (run, parts),
        "zoomed run": (f"{run}?from=2&to=5", parts),
    }[screen]
    shown = "nav.tabs small" if early == lists else "section canvas"
    with visitor.visit(state, hash_="#/nowhere") as (page, watch):
        page.locator(".connection.live").wait_for()
        page.clock.set_fixed_time(datetime.now(UTC))  # early answers would be too old on a slow machine
        page.goto(f"{visitor.url}/{hash_}")
        page.locator(shown).first.wait_for()
        before = len(watch.requests)
        page.reload()
        page.locator(shown).first.wait_for()
        page.locator(".connection.live").wait_for()
        page.wait_for_timeout(500)
        paths = Counter(request.url.removeprefix(visitor.url) for request in watch.requests[before:])
        calls = {path: number for path, number in paths.items() if path.startswith("/v1/")}
        assert set(calls.values()) == {1}, calls
        assert {path.split("?")[0] for path in calls} == early | {"/v1/me", "/v1/events"}, calls


HIDE = """(isHidden) => {
  Object.defineProperty(document, "hidden", { get: () => isHidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""A headless browser shows all its pages."""
COUNT_TIMERS = """
window.timersThatRan = 0;
for (const name of ["setTimeout", "setInterval"]) {
  const make = window[name];
  window[name] = (act, ...more) => make((...given) => { window.timersThatRan += 1; act(...given); }, ...more);
}
"""


@pytest.mark.parametrize("screen", ["jobs", "run", "playground", "compare", "system"])
def test_hidden_page_does_nothing_until_somebody_looks(
    visitor: Visitor,
    installation: Installation,
    state: StorageState,
    tuned: dict[str, Any],
    slower: dict[str, Any],
    screen: str,
) -> None:
    hash_ = {
        "run": f"#/runs/{tuned['id']}",
        "compare": f"#/compare?jobs={slower['id']},{tuned['id']}",
        "system": "#/usage?tab=system",
    }.get(screen, f"#/{screen}")
    with visitor.visit(state, hash_="#/nowhere") as (page, watch):
        page.locator(".connection.live").wait_for()
        page.clock.install()
        page.add_init_script(COUNT_TIMERS)
        page.goto(f"{visitor.url}/{hash_}")
        page.reload()
        page.locator(".connection.live").wait_for()
        page.clock.pause_at(datetime.now(UTC) + timedelta(seconds=5))
        pass_time(page, watch, 2)
        with page.expect_event("requestfailed", lambda request: request.url.endswith("/v1/events")):
            page.evaluate(HIDE, True)
            pass_time(page, watch, 31)
        before = len(watch.requests)
        ran = page.evaluate("window.timersThatRan")
        assert ran > 0, "while it was shown"
        page.clock.run_for(3_600_000)
        page.wait_for_timeout(200)
        assert watch.requests[before:] == []
        assert page.evaluate("window.timersThatRan") == ran
        page.evaluate(HIDE, False)
        pass_time(page, watch, 2)
        expect(page.locator(".connection")).to_have_text(re.compile("live"))
        paths = [urlsplit(request.url).path for request in watch.requests[before:]]
        assert paths.count("/v1/events") == 1, paths
        assert screen != "jobs" or "/v1/jobs" in paths[paths.index("/v1/events") :], "what changed meanwhile is read"


@pytest.mark.parametrize("screen", ["jobs", "run"])
def test_change_between_the_first_answers_and_the_stream_is_shown(
    visitor: Visitor, installation: Installation, state: StorageState, screen: str
) -> None:
    job_id = installation.train(name="changed-between", publish=False, epochs=500)
    installation.wait_for_step(job_id, 1)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    # Without another stream, the API's reader would begin with this one, a little in the past.
    with visitor.visit(state) as (other, _), visitor.visit(state, hash_="#/nowhere") as (page, _):
        other.locator(".connection.live").wait_for()
        page.locator(".connection.live").wait_for()
        page.route("**/v1/events", hold)
        page.goto(f"{visitor.url}/#/{'jobs' if screen == 'jobs' else f'runs/{job_id}'}")
        page.reload()
        row = page.locator("tbody tr", has=page.locator(f'a[href="#/runs/{job_id}"]'))
        badge = (row if screen == "jobs" else page.locator(".run-head")).locator(".badge")
        expect(badge).to_have_class(re.compile("running"))
        while not held:
            page.wait_for_timeout(20)
        installation.call("POST", f"/v1/jobs/{job_id}/cancel")
        installation.wait(job_id, lambda job: job["state"] == "cancelled")
        installation.wait(job_id, lambda job: not installation.trainers())
        expect(badge).to_have_class(re.compile("running"))
        held[0].continue_()
        expect(badge).to_have_class(re.compile("cancelled"))


@pytest.mark.parametrize("screen", ["evals", "gates", "playground", "usage"])
def test_change_before_the_stream_is_shown_on_other_screens(
    visitor: Visitor,
    installation: Installation,
    state: StorageState,
    tuned: dict[str, Any],
    evaluated: tuple[str, str],
    screen: str,
) -> None:
    """As above: the first answer of each screen says where its stream begins."""
    eval_id, run_id = evaluated
    name = f"between-{secrets.token_hex(3)}"
    job_id = installation.train(name=name, publish=False, epochs=500) if screen == "usage" else ""
    address = {"evals": f"#/evals/{eval_id}", "usage": "#/usage?by=job"}.get(screen, f"#/{screen}")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    def act() -> None:
        if screen == "usage":
            installation.call("POST", f"/v1/jobs/{job_id}/cancel")
            installation.wait(job_id, lambda job: job["state"] == "cancelled")
        elif screen == "evals":
            source = installation.call("GET", f"/v1/evals/{eval_id}/runs/{run_id}")["data_source"]
            request = {"name": name, "data_source": source}
            run = installation.call("POST", f"/v1/evals/{eval_id}/runs", json=request)
            installation.call("POST", f"/v1/jobs/{run['id']}/pause")  # its later changes would show it too
        else:
            alias = {"adapter": tuned["result"]["adapter_id"], "reason": "Between."}
            installation.call("PUT", f"/v1/aliases/{name}", json=alias)

    with visitor.visit(state) as (other, _), visitor.visit(state, hash_="#/nowhere") as (page, _):
        if job_id:
            installation.wait_for_step(job_id, 1)
        other.locator(".connection.live").wait_for()
        page.locator(".connection.live").wait_for()
        page.route("**/v1/events", hold)
        page.goto(f"{visitor.url}/{address}")
        page.reload()
        shown = page.locator("main a, main option", has_text=name)
        if screen == "usage":
            shown = page.locator(f'a[href="#/runs/{job_id}"]')
        page.locator("main table, main select").first.wait_for()
        expect(shown).to_have_count(0)
        while not held:
            page.wait_for_timeout(20)
        act()
        expect(shown).to_have_count(0)
        held[0].continue_()
        expect(shown).not_to_have_count(0)  # an option that is not open is not visible
    if screen in ("gates", "playground"):
        installation.call("DELETE", f"/v1/aliases/{name}")


def test_page_of_a_revoked_key_says_so_and_asks_nothing_more(
    visitor: Visitor, installation: Installation, tuned: dict[str, Any]
) -> None:
    key = installation.call("POST", "/v1/keys", json={"name": f"leaves-{secrets.token_hex(4)}", "role": "viewer"})
    with visitor.visit(allowed=frozenset({401})) as (page, watch):
        sign_in(page, key["secret"])
        page.locator(".connection.live").wait_for()
        installation.call("DELETE", f"/v1/keys/{key['id']}")
        page.get_by_text("Your sign-in has ended").wait_for()
        page.get_by_label("API key").wait_for()
        assert page.evaluate("localStorage.getItem('mens.sign_in')") is None
        expect(page.locator("a.name")).to_have_count(0)
        page.wait_for_timeout(500)
        before = len(watch.requests)
        page.wait_for_timeout(3_000)
        assert watch.requests[before:] == []


def test_killed_api_comes_back_without_a_reload(
    visitor: Visitor, installation: Installation, state: StorageState, tuned: dict[str, Any]
) -> None:
    with visitor.visit(state) as (page, watch):
        page.locator("a.name", has_text=NAME).first.wait_for()
        page.locator(".connection.live").wait_for()
        page.evaluate("window.isSamePage = true")
        watch.is_offline = True
        os.kill(installation.stack.pid("api"), signal.SIGKILL)
        page.locator(".connection.connecting, .connection.stale").wait_for(timeout=30_000)
        expect(page.locator("a.name", has_text=NAME)).not_to_have_count(0)
        page.locator(".connection.live").wait_for(timeout=90_000)
        assert page.evaluate("window.isSamePage") is True
        expect(page.locator("a.name", has_text=NAME)).not_to_have_count(0)
        expect(page.locator("table.old")).to_have_count(0)


def test_progress_of_a_job_that_is_not_in_the_list_requests_nothing(
    visitor: Visitor, installation: Installation, state: StorageState, tuned: dict[str, Any]
) -> None:
    me = installation.call("GET", "/v1/me")
    channel = f"mens.changes.{me['tenant']}.{me['name']}"
    tell = """([channel, change]) => new BroadcastChannel(channel).postMessage({ change })"""
    with visitor.visit(state) as (page, watch):
        page.locator("a.name").first.wait_for()
        page.locator(".connection.live").wait_for()
        page.wait_for_timeout(1_000)

        def lists() -> int:
            return sum(urlsplit(request.url).path == "/v1/jobs" for request in watch.requests)

        before, one = lists(), {"id": "ftjob-0far", "step": 3, "train_loss": 0.5, "version": 4}
        for _ in range(3):
            page.evaluate(tell, [channel, {"event": "progress", "data": one}])
            page.wait_for_timeout(700)
        assert lists() == before
        page.evaluate(tell, [channel, {"event": "job", "data": one | {"state": "running", "name": "new"}}])
        page.wait_for_timeout(1_500)
        assert lists() == before + 1
