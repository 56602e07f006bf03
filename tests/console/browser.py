"""A Chromium that opens the console, and checks for everything that a page must never do."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, StorageState, expect

from tests.system.fetched import axe

expect.set_options(timeout=30_000)  # as long as every other wait of Playwright
CHROMIUM = shutil.which("chromium") or ""
WIDE, PHONE = (1280, 900), (360, 780)
TELL_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "javascript:alert(1)",
    "\u202egnp.exe",
    "a" * 5000,
    "nul\u0000here",
    "lone \ud800 surrogate",
]
"""Names that a page must show as text."""
POLICY = 'version: "1"\ngates:\n  supervised_ratio: {min_pct: 1}\n  truncation: {block: false}\n'
LOAD_FAILED = re.compile(
    r"Failed to load resource: (?:.* status of (\d+)|net::ERR_(?:INTERNET_DISCONNECTED|FAILED|CONNECTION_\w+|EMPTY_RESPONSE|INCOMPLETE_CHUNKED_ENCODING))"
)


def need_chromium() -> str:
    """The path of Chromium; without it the test is skipped."""
    if not CHROMIUM:
        pytest.skip("Chromium is not installed")
    return CHROMIUM


@dataclass
class Watch:
    """Faults of a page: things that it has done and must not do.

    Attributes:
        origin: the only origin that it may ask, besides the friend.
        routes: methods and patterns of paths that the API describes.
        allowed: statuses of answers that the test provokes.
        is_offline: requests are meant to fail.
        friend: origin to which people are sent and come back from.
        unanswered: requests without an answer so far; a stream is answered when it begins.
    """

    origin: str
    routes: list[tuple[str, re.Pattern[str]]]
    allowed: frozenset[int] = frozenset()
    is_offline: bool = False
    friend: str = ""
    faults: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    unanswered: set[Request] = field(default_factory=set)

    def follow(self, page: Page) -> None:
        """Collect what happens on a page."""
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.faults.append(f"page error: {error}"))
        page.on("request", self._on_request)
        page.on("response", self._on_response)
        page.on("requestfinished", self._on_end)
        page.on("requestfailed", self._on_end)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type not in {"error", "warning"} or self._is_friends(message.page.url if message.page else ""):
            return
        failed = LOAD_FAILED.match(message.text)
        if failed and (int(failed[1]) in self.allowed if failed[1] else self.is_offline):
            return
        self.faults.append(f"console: {message.text}")

    def _on_request(self, request: Request) -> None:
        self.requests.append(request)
        self.unanswered.add(request)
        url = urlsplit(request.url)
        is_visit = request.is_navigation_request()
        if self.friend and self._is_friends(request.url if is_visit else request.frame.url):
            return  # what the friend's pages ask is theirs
        if f"{url.scheme}://{url.netloc}" != self.origin:
            self.faults.append(f"foreign origin: {request.url}")
        elif not any(method == request.method and path.fullmatch(url.path) for method, path in self.routes):
            self.faults.append(f"not in OpenAPI: {request.method} {url.path}")

    def _is_friends(self, url: str) -> bool:
        return bool(self.friend) and url.startswith(f"{self.friend}/")

    def _on_end(self, request: Request) -> None:
        self.unanswered.discard(request)

    def _on_response(self, response: Response) -> None:
        if urlsplit(response.url).path == "/v1/events":
            self.unanswered.discard(response.request)
        if response.status >= 500:
            self.faults.append(f"{response.status}: {response.url}")


def routes_of(openapi: dict[str, Any]) -> list[tuple[str, re.Pattern[str]]]:
    """Methods and patterns of paths of an OpenAPI description."""
    return [(method.upper(), _pattern(path)) for path, methods in openapi["paths"].items() for method in methods]


def _pattern(path: str) -> re.Pattern[str]:
    """Return the pattern of a path: a parameter is one part of it, but the path of a file is several."""
    return re.compile(re.sub(r"\\{(\w+)\\}", lambda name: ".+" if name[1] == "path" else "[^/]+", re.escape(path)))


@dataclass
class Visitor:
    """Opens pages of one installation in one browser."""

    browser: Browser
    url: str
    routes: list[tuple[str, re.Pattern[str]]]

    @contextmanager
    def visit(
        self,
        state: StorageState | None = None,
        *,
        size: tuple[int, int] = WIDE,
        scheme: Any = "light",
        allowed: frozenset[int] = frozenset(),
        hash_: str = "",
        friend: str = "",
    ) -> Iterator[tuple[Page, Watch]]:
        """A page of a new person; at the end nothing may have happened that must not happen.

        Args:
            state: what an earlier page of theirs has kept; None: nothing.
            size: size of the window.
            scheme: colours that the system prefers.
            allowed: statuses of answers that the test provokes.
            hash_: the part of the address that names the screen.
            friend: origin to which people are sent and come back from.
        """
        context = self.browser.new_context(
            storage_state=state,
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,
            reduced_motion="reduce",
            permissions=["clipboard-read", "clipboard-write"],
        )
        context.set_default_timeout(15_000)
        context.add_init_script(TELL_VIOLATIONS)
        watch = Watch(self.url, self.routes, allowed, friend=friend)
        try:
            page = context.new_page()
            watch.follow(page)
            page.goto(f"{self.url}/{hash_}")
            yield page, watch
        finally:
            context.unroute_all(behavior="ignoreErrors")
            for opened in context.pages:
                opened.unroute_all(behavior="ignoreErrors")
            context.close()
        assert not watch.faults, "\n".join(watch.faults)


def sign_in(page: Page, key: str) -> None:
    """Sign in by a key, as people do."""
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("navigation", name="Screens").wait_for()


def ask(page: Page, method: str, path: str, body: Any = None) -> int:
    """Status of a request that a page's person makes without the page's buttons."""
    return answer_to(page, method, path, body)[0]


def answer_to(page: Page, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Status of such a request, and the error's code if it was refused."""
    status, code = page.evaluate(
        """async ([method, path, body]) => {
            const headers = {"X-Mens-Sign-In": localStorage.getItem("mens.sign_in"), "Content-Type": "application/json"};
            const answer = await fetch(path, { method, body, headers });
            const { error } = await answer.json().catch(() => ({}));
            return [answer.status, error?.mens?.code ?? ""];
        }""",
        [method, path, None if body is None else json.dumps(body)],
    )
    return int(status), str(code)


def findings(page: Page) -> list[str]:
    """Findings of axe-core on a page; it comes by the debugging protocol, which the page's policy does not bind."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(axe().read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:300]}"
        for one in found["violations"]
        for node in one["nodes"]
    ]
