"""A Chromium with which benches measure pages: traffic, time until something is shown, blocking time and CPU use."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.command import PeerMissing
from bench.harness.peers import require

if TYPE_CHECKING:
    from playwright.sync_api import Browser, CDPSession, Page, StorageState

SIZE = (1280, 900)
TICKS = os.sysconf("SC_CLK_TCK")
OBSERVE = """
window.__blocked = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.__blocked.push(entry.duration);
}).observe({ type: "longtask", buffered: true });
window.__whenSeen = (selector, from = 0) => new Promise((resolve) => {
  const look = () => {
    if (!document.querySelector(selector)) return void requestAnimationFrame(look);
    // This frame paints the element; the next task begins after it.
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => resolve(performance.now() - from);
    port2.postMessage(null);
  };
  requestAnimationFrame(look);
});
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium within the block.

    Raises:
        PeerMissing: it, or Playwright, is not installed.
    """
    require("playwright")
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        raise PeerMissing("not installed: chromium (Debian: apt-get install chromium).")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Traffic:
    """Requests of a page since the counts were last reset.

    Attributes:
        calls: statuses and URLs of requests that went to a server, not those that the browser's cache answered.
    """

    calls: list[str] = field(default_factory=list)
    _received: dict[str, int] = field(default_factory=dict)
    _cached: set[str] = field(default_factory=set)
    _urls: dict[str, str] = field(default_factory=dict)

    def follow(self, session: CDPSession) -> None:
        """Start counting a page's requests."""
        session.on("Network.requestWillBeSent", self._on_request)
        session.on("Network.requestServedFromCache", lambda event: self._cached.add(event["requestId"]))
        session.on("Network.responseReceived", self._on_response)
        session.on("Network.dataReceived", self._on_data)
        session.send("Network.enable")

    @property
    def received(self) -> int:
        """Bytes of all responses as transferred, including open streams."""
        return sum(self._received.values())

    def received_from(self, part: str) -> int:
        """Return the bytes of answers whose URL contains a text."""
        return sum(size for request, size in self._received.items() if part in self._urls.get(request, ""))

    def forget(self) -> None:
        """Reset the counts."""
        self.calls.clear()
        self._received.clear()

    def _on_request(self, event: dict[str, Any]) -> None:
        self._urls[event["requestId"]] = event["request"]["url"]

    def _on_response(self, event: dict[str, Any]) -> None:
        if event["requestId"] in self._cached or event["response"].get("fromDiskCache"):
            return
        if url := self._urls.get(event["requestId"]):
            self.calls.append(f"{event['response']['status']} {url}")
        self._count(event["requestId"], event["response"].get("encodedDataLength", 0))

    def _on_data(self, event: dict[str, Any]) -> None:
        self._count(event["requestId"], event["encodedDataLength"])

    def _count(self, request: str, size: float) -> None:
        self._received[request] = self._received.get(request, 0) + int(size)


@contextmanager
def opened(browser: Browser, state: StorageState | None = None) -> Iterator[tuple[Page, Traffic]]:
    """Yield a page of a new user, and its traffic.

    Args:
        browser: the browser that opens it.
        state: stored state of an earlier page of the same user; None: none.
    """
    context = browser.new_context(storage_state=state, viewport={"width": SIZE[0], "height": SIZE[1]})
    context.set_default_timeout(60_000)
    context.add_init_script(OBSERVE)
    try:
        page, traffic = context.new_page(), Traffic()
        traffic.follow(context.new_cdp_session(page))
        yield page, traffic
    finally:
        context.close()


def milliseconds_until(page: Page, url: str, selector: str) -> float:
    """Open an address; return the time until the end of the frame that paints an element that the selector matches."""
    page.goto(url, wait_until="commit")
    return float(page.evaluate("(selector) => window.__whenSeen(selector)", selector))


def longest_block(page: Page, *, forget: bool = False) -> float:
    """Return the milliseconds of the longest task of a page; 0 if none took over 50 ms, the shortest that Chromium
    reports.

    Args:
        page: the page to measure.
        forget: whether to start over afterwards.
    """
    script = (
        "(forget) => "
        "{ const longest = Math.max(0, ...window.__blocked); if (forget) window.__blocked = []; return longest; }"
    )
    return float(page.evaluate(script, forget))


def processor_seconds(command: str) -> float:
    """Return the CPU seconds used so far by descendants of this process whose command line contains a text, and by
    their own descendants.
    """
    children: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        children.setdefault(int(fields[1]), []).append(int(folder.name))
        used[int(folder.name)] = int(fields[11]) + int(fields[12])
    total, waiting = 0, [(pid, False) for pid in children.get(os.getpid(), [])]
    while waiting:
        pid, is_below = waiting.pop()
        is_meant = is_below or command in _command_line(pid)
        total += used[pid] * is_meant
        waiting += [(child, is_meant) for child in children.get(pid, [])]
    return total / TICKS


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def share_of_a_core(command: str, page: Page, seconds: float) -> float:
    """Return the share of a core, in percent, that the processes of :func:`processor_seconds` use while a page is open."""
    before, began = processor_seconds(command), time.perf_counter()
    page.wait_for_timeout(seconds * 1000)
    return 100 * (processor_seconds(command) - before) / (time.perf_counter() - began)
