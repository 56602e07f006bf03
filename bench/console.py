"""The web console (goals W1 to W9): bytes, times and CPU use of its pages, compared with MLflow's and TensorBoard's for
the same runs.

    python -m bench.console [--runs 100] [--points 100000] [--jobs 10000] [--seconds 10]

The API with a replica that only pretends to answer, MLflow's server and TensorBoard, each with the same runs of four
series, one of them long. A headless Chromium opens their pages in turn, each time as a new user. Peers are measured
where they have the same page: the list of runs, and the curves of a run (TensorBoard draws those of all runs on its
first page).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.gateway import KeptConnection, MeasuredEndpoint, percentile, stream
from bench.harness.chromium import (
    Traffic,
    chromium,
    longest_block,
    milliseconds_until,
    opened,
    processor_seconds,
    share_of_a_core,
)
from bench.harness.command import bench_parser, parse_options, print_goal, run_bench
from bench.harness.peers import require
from bench.serving.console_runs import SharedRuns
from bench.serving.console_servers import SeededJobs, ViewedPages, mens, mlflow, tensorboard, training_progress
from bench.serving.gateway_variants import FakeInstallation

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, StorageState

SMOKE = {"runs": 4, "steps": 20, "points": 2000, "jobs": 200, "running": 4, "seconds": 1.0, "rounds": 1, "pages": 4}
CHROMIUM, API = "chromium", " -m api"
"""Substrings of the command lines of processes whose CPU time is measured."""
ROW, CURVE = "tbody tr a.name", "section canvas"
SETTLED_MS = 2000
"""Wait after the first row, in which a page loads the rest."""
GROWN_MB = 0.4
"""Most by which the scripts of a page may grow with 20,000 changes. A hundred running jobs make 4.3 million changes a day,
which would add 86 MB at this rate.
"""
P99_ADDED_MS = 2.0
"""Most by which open pages may delay the first token of one chat in a hundred: a model takes at least ten times as long for it."""
UPDATE_SECONDS = 2.0
"""Seconds between two changes of a running job: the API does not report progress more often."""
ANSWER_BYTES = 1 << 20
CHAT_REQUESTS = 300
UPDATES = """([name, ids, times]) => {
  const channel = new BroadcastChannel(name);
  for (let time = 0; time < times; time++)
    for (const id of ids) channel.postMessage({ change: { event: "progress", data: { id, step: time, train_loss: 1 / (time + 1) } } });
}"""
HIDE = """(isHidden) => {
  Object.defineProperty(document, "hidden", { get: () => isHidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""Lets a page believe that it is hidden: a headless browser shows all its pages, so this one still draws what changes."""
HIDDEN_MS = 31_000
"""Time after which a hidden page has ended its stream."""
HIDDEN_PERCENT = 0.3
"""Most that a hidden page may use above a blank one: the goal is nothing, and two measurements of a blank page differ by as much."""
SCROLL = """async (steps) => {
  for (let step = 0; step < steps; step++) {
    scrollBy(0, 400);
    await new Promise(requestAnimationFrame);
    if (step % 10 === 9) await new Promise((resolve) => setTimeout(resolve, 100));  // the next page of the list
  }
  return [document.querySelectorAll("tbody tr[aria-rowindex]").length, document.querySelector("tbody tr:last-of-type, tbody tr")?.ariaRowIndex ?? ""];
}"""
OPEN = """async ([address, selector]) => {
  location.hash = address;
  return await window.__whenSeen(selector);
}"""
ARRIVED = """(part) => {
  const entries = performance.getEntriesByType("resource").filter(({ name }) => name.includes(part));
  return entries[entries.length - 1].responseEnd;
}"""


class Limited(NamedTuple):
    """A fact of a goal with a separate target."""

    value: float
    target: float


@dataclass
class ConsoleBench:
    """Measures everything in one browser.

    Attributes:
        browser: the browser that opens all pages.
        installation: the API.
        jobs: the jobs and keys that it was seeded with.
        states: stored browser state of signed-in users, by tenant.
        views: pages by server: ``mens`` and the peers.
        options: options of the command line.
    """

    browser: Browser
    installation: FakeInstallation
    jobs: SeededJobs
    states: dict[str, StorageState]
    views: dict[str, ViewedPages]
    options: argparse.Namespace

    def state(self, server: str) -> StorageState | None:
        """Return the browser state that a server's sign-in leaves."""
        return self.states["runs"] if server == "mens" else None

    def url(self, screen: str) -> str:
        """Return the address of a screen."""
        return f"{self.installation.api_url}/{screen}"

    def goal(self, name: str, value: float, target: float, **facts: object) -> bool:
        """Print a goal that is met if its value, and each fact that has a target, is at most the target."""
        limits = {key: fact for key, fact in facts.items() if isinstance(fact, Limited)}
        values = facts | {key: fact.value for key, fact in limits.items()}
        values |= {f"{key}_target": fact.target for key, fact in limits.items()}
        rounded = {key: round(fact, 3) if isinstance(fact, float) else fact for key, fact in values.items()}
        met = value <= target and all(fact.value <= fact.target for fact in limits.values())
        return print_goal(name, value=round(value, 3), **rounded, target=target, met=met, smoke=self.options.smoke)

    # -- goals ---------------------------------------------------------------------------------------------------------

    def lists(self) -> list[bool]:
        """Measure bytes and times of the list of runs (W1, W2)."""
        cold: dict[str, list[float]] = {name: [] for name in self.views}
        warm: dict[str, list[float]] = {name: [] for name in self.views}
        received: dict[str, float] = {}
        files, floor = 0.0, list[tuple[float, float]]()
        for _ in range(self.options.rounds):
            floor.append(self.blank_page())
            for name, view in self.views.items():
                with opened(self.browser, self.state(name)) as (page, traffic):
                    cold[name].append(milliseconds_until(page, view.runs, view.row))
                    page.wait_for_timeout(SETTLED_MS)
                    received[name] = traffic.received / 1000
                    files = traffic.received_from("/console/") / 1000 if name == "mens" else files
                    page.goto("about:blank")
                    warm[name].append(milliseconds_until(page, view.runs, view.row))
        middle = {name: (statistics.median(cold[name]), statistics.median(warm[name])) for name in self.views}
        print(f"{'list of runs':<14}{'cold ms':>10}{'warm ms':>10}{'received kB':>14}   load {os.getloadavg()[0]:.1f}")
        for name, (first, again) in middle.items():
            print(f"{name:<14}{first:>10.0f}{again:>10.0f}{received[name]:>14.0f}")
        blank, blank_again = (statistics.median(values) for values in zip(*floor, strict=True))
        print(f"{'blank page':<14}{blank:>10.0f}{blank_again:>10.0f}")
        ratios = {f"{name}_ratio": middle[name][0] / middle["mens"][0] for name in self.views if name != "mens"}
        sizes = {f"{name}_kb": received[name] for name in self.views if name != "mens"}
        return [
            self.goal("W1", files, 70, all_kb=Limited(all_files_kb(), 150), mens_kb=received["mens"], **sizes),
            self.goal(
                "W2",
                middle["mens"][0],
                300,
                warm_ms=Limited(middle["mens"][1], 150),
                blank_ms=blank,
                blank_warm_ms=blank_again,
                **ratios,
            ),
        ]

    def blank_page(self) -> tuple[float, float]:
        """Return the milliseconds until a page of the API without a script is painted, for a new user and again: no page
        of this browser is faster on this machine.
        """
        with opened(self.browser) as (page, _):
            first = milliseconds_until(page, self.url("health"), "body")
            page.goto("about:blank")
            return first, milliseconds_until(page, self.url("health"), "body")

    def open_pages(self) -> list[bool]:
        """Measure processor, calls and bytes of an open page (W3, W4), and its memory (W9)."""
        seconds, name = self.options.seconds, "mens.changes.busy.bench-busy"
        shares: dict[str, float] = {}
        with opened(self.browser) as (page, _):
            page.wait_for_timeout(SETTLED_MS)
            shares["blank"] = share_of_a_core(CHROMIUM, page, seconds)
        for peer, view in self.views.items():
            if peer == "mens":
                continue
            with opened(self.browser) as (page, _):
                milliseconds_until(page, view.runs, view.row)
                page.wait_for_timeout(SETTLED_MS)
                shares[peer] = share_of_a_core(CHROMIUM, page, seconds)
        with opened(self.browser, self.states["busy"]) as (page, traffic), self.updates():
            milliseconds_until(page, self.url("#/jobs"), ROW)
            page.wait_for_timeout(SETTLED_MS)
            traffic.forget()
            shares["mens"] = share_of_a_core(CHROMIUM, page, seconds)
            calls, received = len(traffic.calls) * 60 / seconds, traffic.received * 60 / seconds / 1000
            shares["hidden"], hidden_calls = self.hidden(page, traffic)
            memory = [heap_mb(page)]
            ids, times = [lease.job.id for lease in self.jobs.running], 1 if self.options.smoke else 200
            for _ in range(2):
                page.context.new_page().goto(self.url("#/jobs"))
                page.context.pages[-1].evaluate(UPDATES, [name, ids, times])
                page.context.pages[-1].close()
                page.wait_for_timeout(seconds * 500)
                memory.append(heap_mb(page))
        polled, unchanged = self.without_a_stream(6 * seconds)
        print(f"\n{'open page':<14}{'% of a core':>12}")
        for server, share in shares.items():
            print(f"{server:<14}{share:>12.2f}")
        added = shares["mens"] - shares["blank"]
        peers = {f"{server}_percent": share for server, share in shares.items() if server not in {"mens", "hidden"}}
        return [
            self.goal(
                "W3",
                added,
                3,
                whole_percent=shares["mens"],
                hidden_percent=Limited(shares["hidden"] - shares["blank"], HIDDEN_PERCENT),
                hidden_calls=Limited(hidden_calls, 0),
                **peers,
            ),
            self.goal(
                "W4",
                calls,
                2,
                kb_a_minute=Limited(received, 400),
                polling_calls=Limited(polled, 12),
                polling_304=unchanged,
            ),
            self.goal(
                "W9",
                memory[-1],
                100,
                grown_mb=Limited(memory[-1] - memory[1], GROWN_MB),
                changes=2 * times * len(ids),
            ),
        ]

    def hidden(self, page: Page, traffic: Traffic) -> tuple[float, int]:
        """Return the share of a core that a hidden page uses while jobs run, and the number of its calls. It is shown again
        afterwards.
        """
        page.evaluate(HIDE, True)
        page.wait_for_timeout(0 if self.options.smoke else HIDDEN_MS)
        traffic.forget()
        share, calls = share_of_a_core(CHROMIUM, page, self.options.seconds), len(traffic.calls)
        page.evaluate(HIDE, False)
        page.locator(".connection.live").wait_for()
        return share, calls

    def without_a_stream(self, seconds: float) -> tuple[float, float]:
        """Return the number of calls per minute when event streams are refused, each try of one included, and the share
        of 304 responses for the list.
        """
        with opened(self.browser, self.states["runs"]) as (page, traffic):
            page.route("**/v1/events*", lambda route: route.fulfill(status=502))
            milliseconds_until(page, self.url("#/jobs"), ROW)
            page.locator(".connection.polling").wait_for()
            traffic.forget()
            page.wait_for_timeout(seconds * 1000)
            calls = list(traffic.calls)
        lists = [call for call in calls if "/v1/jobs" in call]
        return len(calls) * 60 / seconds, sum(call.startswith("304") for call in lists) / max(len(lists), 1)

    def many_jobs(self) -> bool:
        """Measure a list of thousands of jobs: first page, and the longest task while it is scrolled (W5)."""
        firsts, blocks = list[float](), list[float]()
        for _ in range(self.options.rounds):
            with opened(self.browser, self.states["many"]) as (page, _):
                firsts.append(milliseconds_until(page, self.url("#/jobs"), ROW))
                page.wait_for_timeout(SETTLED_MS)
                longest_block(page, forget=True)
                drawn, _ = page.evaluate(SCROLL, 20 if self.options.smoke else 400)
                blocks.append(longest_block(page))
        return self.goal(
            "W5",
            statistics.median(blocks),
            50,
            worst_ms=max(blocks),
            first_ms=Limited(statistics.median(firsts), 300),
            jobs=self.options.jobs,
            rows_in_document=drawn,
        )

    def curves(self) -> bool:
        """Measure the curves of a long run (W6): the response, its drawing and a zoom, and the time until the peers
        show theirs.
        """
        times: dict[str, list[float]] = {name: [] for name in self.views}
        draws, zooms = list[float](), list[float]()
        for _ in range(self.options.rounds):
            for name, view in self.views.items():
                with opened(self.browser, self.state(name)) as (page, _):
                    times[name].append(milliseconds_until(page, view.run, view.curve))
                    if name == "mens":
                        zooms.append(zoom_ms(page))
            draws.append(self.draw_ms())
        middle = {name: statistics.median(values) for name, values in times.items()}
        answer, size = self.answer()
        print(f"\n{'curves':<14}{'shown ms':>10}")
        for name, value in middle.items():
            print(f"{name:<14}{value:>10.0f}")
        ratios = {f"{name}_ratio": value / middle["mens"] for name, value in middle.items() if name != "mens"}
        return self.goal(
            "W6",
            answer,
            100,
            kb=Limited(size, 60),
            draw_ms=Limited(statistics.median(draws), 50),
            zoom_ms=Limited(statistics.median(zooms), 150),
            shown_ms=middle["mens"],
            **ratios,
        )

    def draw_ms(self) -> float:
        """Return the milliseconds from the arrival of the curves until they are painted, in a page that has shown another
        run before: a page that has just been opened asks for them before its modules have arrived.
        """
        with opened(self.browser, self.state("mens")) as (page, _):
            milliseconds_until(page, self.url("#/jobs"), ROW)
            other = page.locator(ROW).nth(1).get_attribute("href")
            page.evaluate(OPEN, [other, CURVE])
            page.evaluate(OPEN, ["#/jobs", ROW])
            shown = float(page.evaluate(OPEN, [f"#/runs/{self.jobs.long_id}", CURVE]))
            return shown - float(page.evaluate(ARRIVED, "/metrics"))

    def answer(self) -> tuple[float, float]:
        """Return the milliseconds and compressed kB of the response with the long run's curves, requested as the page
        does.
        """
        import httpx

        headers = {"authorization": f"Bearer {self.jobs.keys['runs']}", "accept-encoding": "gzip"}
        path = f"/v1/jobs/{self.jobs.long_id}/metrics?points=1000"
        times = []
        with httpx.Client(base_url=self.installation.api_url, headers=headers, timeout=60, trust_env=False) as client:
            for _ in range(2 + self.options.rounds):
                began = time.perf_counter()
                with client.stream("GET", path) as response:
                    body = b"".join(response.iter_raw())
                times.append((time.perf_counter() - began) * 1000)
        return statistics.median(times), len(body) / 1000

    def long_chat(self) -> bool:
        """Measure the longest task while two answers of a megabyte arrive (W7)."""
        part = {"choices": [{"index": 0, "delta": {"content": "All work is done. "}, "finish_reason": None}]}
        line = f"data: {json.dumps(part)}\n\n"
        body = line * (ANSWER_BYTES // 18) + "data: [DONE]\n\n"
        with opened(self.browser, self.states["runs"]) as (page, _):
            page.route(
                "**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body)
            )
            page.goto(self.url("#/playground"))
            page.get_by_label("Your question").fill("Continue.")
            longest_block(page, forget=True)
            page.get_by_role("button", name="Send both").click()
            page.get_by_role("group", name="Verdict").wait_for()
            page.wait_for_timeout(500)
            block = longest_block(page)
        return self.goal("W7", block, 100, answers_mb=2)

    def many_pages(self) -> bool:
        """Measure the API with many open pages, and the first tokens of concurrent chats (W8)."""
        endpoint = MeasuredEndpoint(self.installation.api_url, self.installation.key, self.installation.alias)
        quiet = asyncio.run(first_tokens(endpoint, self.options.pages))
        with event_streams(self.installation.api_url, self.jobs.keys["busy"], self.options.pages), self.updates():
            time.sleep(1)
            before, began = processor_seconds(API), time.perf_counter()
            time.sleep(self.options.seconds)
            share = 100 * (processor_seconds(API) - before) / (time.perf_counter() - began)
            busy = asyncio.run(first_tokens(endpoint, self.options.pages))
        p99 = {name: percentile(values, 99) for name, values in (("quiet", quiet), ("busy", busy))}
        return self.goal(
            "W8",
            share,
            5,
            pages=self.options.pages,
            p99_added_ms=Limited(p99["busy"] - p99["quiet"], P99_ADDED_MS),
            p99_ms=p99["busy"],
            p99_ms_without=p99["quiet"],
        )

    @contextmanager
    def updates(self) -> Iterator[None]:
        """Advance every running job by a step every two seconds."""
        from shared.database.connection import Database
        from shared.database.leases import Leases
        from shared.settings import Settings

        database = Database(Settings(home=self.installation.home).database_url)
        leases, ended = Leases(database, 86_400), threading.Event()

        def update() -> None:
            step = 1
            while not ended.is_set():
                began = time.monotonic()
                step += 1
                for lease in self.jobs.running:
                    leases.report(lease, progress=training_progress(step, 1 / step), events=[])
                ended.wait(max(UPDATE_SECONDS - (time.monotonic() - began), 0))

        thread = threading.Thread(target=update)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            database.close()


def all_files_kb() -> float:
    """Return the compressed size of all files of the console."""
    from api.web.console.files import console_files

    files = console_files()
    return sum(len(file.compressed) for file in [files.index, *files.others.values()]) / 1000


def heap_mb(page: Page) -> float:
    """Return the memory that a page's scripts hold after garbage collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = float(session.send("Runtime.getHeapUsage")["usedSize"])
    session.detach()
    return used / 1e6


def zoom_ms(page: Page) -> float:
    """Return the milliseconds from the end of a drag over the curve until the selected part has been requested and
    drawn.
    """
    box = page.locator(".u-over").first.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 50, steps=4)
    page.evaluate(
        "addEventListener('mouseup', () => (window.__released = performance.now()), { once: true, capture: true })"
    )
    with page.expect_response("**/metrics?*from_step=*"):
        page.mouse.up()
    page.evaluate("() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)))")
    return float(page.evaluate("performance.now() - window.__released"))


async def first_tokens(endpoint: MeasuredEndpoint, requests: int) -> list[float]:
    """Return the milliseconds to the first token of consecutive chats."""
    connection = await KeptConnection().open(endpoint)
    milliseconds = [(await stream(endpoint, 1, connection))[0] * 1000 for _ in range(max(CHAT_REQUESTS, requests) + 20)]
    connection.close()
    return milliseconds[20:]


@contextmanager
def event_streams(url: str, key: str, count: int) -> Iterator[None]:
    """Open as many event streams as the pages would, and read them."""
    import httpx

    ready, ended = threading.Barrier(2), threading.Event()

    async def read(client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/v1/events") as response:
            response.raise_for_status()
            async for _ in response.aiter_raw():
                pass

    async def hold() -> None:
        limits = httpx.Limits(max_connections=count)
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(
            base_url=url, headers=headers, timeout=None, limits=limits, trust_env=False
        ) as client:
            tasks = [asyncio.create_task(read(client)) for _ in range(count)]
            await asyncio.sleep(1)
            ready.wait()
            await asyncio.to_thread(ended.wait)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        refused.extend(result for result in results if isinstance(result, Exception))

    refused: list[Exception] = []
    thread = threading.Thread(target=lambda: asyncio.run(hold()))
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if refused:
        raise refused[0]


def signed_in(browser: Browser, url: str, key: str) -> StorageState:
    """Sign in with a key; return the browser's stored state."""
    with opened(browser) as (page, _):
        page.goto(url)
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("navigation", name="Screens").wait_for()
        return page.context.storage_state()


def measure(options: argparse.Namespace) -> bool:
    """Start all servers and measure; return whether the goals are met."""
    require("playwright", "uvicorn")
    runs = SharedRuns(options.runs, options.steps, options.points)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peers = {
            "mlflow": stack.enter_context(mlflow(folder / "mlflow", runs)),
            "tensorboard": stack.enter_context(tensorboard(folder / "tensorboard", runs)),
        }
        (folder / "mens").mkdir()
        installation, jobs = stack.enter_context(mens(folder / "mens", runs, options))
        url = installation.api_url
        own = ViewedPages(f"{url}/#/jobs", f"{url}/#/runs/{jobs.long_id}", ROW, CURVE)
        with chromium() as browser:
            states = {tenant: signed_in(browser, url, key) for tenant, key in jobs.keys.items()}
            bench = ConsoleBench(browser, installation, jobs, states, {"mens": own, **peers}, options)
            lists, pages = bench.lists(), bench.open_pages()
            met = [*lists, *pages, bench.many_jobs(), bench.curves(), bench.long_chat()]
        return all([*met, bench.many_pages()])  # outside: Playwright's event loop is the running one of this process


def main() -> int:
    """Entry point."""
    parser = bench_parser("bench.console", __doc__)
    parser.add_argument("--runs", type=int, default=100, help="runs that every server shows")
    parser.add_argument("--steps", type=int, default=200, help="steps of each run except the long one")
    parser.add_argument("--points", type=int, default=100_000, help="steps of the long run")
    parser.add_argument("--running", type=int, default=100, help="running jobs, each with a step every two seconds")
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs in the long list")
    parser.add_argument("--pages", type=int, default=100, help="number of open pages, simulated as event streams")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of each measurement of an open page")
    parser.add_argument("--rounds", type=int, default=3, help="loads of each page")
    options = parse_options(parser, SMOKE)
    return run_bench(lambda: measure(options))


if __name__ == "__main__":
    sys.exit(main())
