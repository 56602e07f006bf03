"""Accessibility: axe-core finds no fault on any screen, in both colour schemes, at two widths; nothing is wider than
the window.

With ``MENS_UPDATE_GOLDEN=1`` this also makes the pictures of docs/console.md.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.console.browser import PHONE, WIDE, Visitor, findings
from tests.system.loop import QUESTION

if TYPE_CHECKING:
    from playwright.sync_api import Page, StorageState

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
MOST_PICTURE = 40_000
LOOKS = [("light", WIDE), ("dark", WIDE), ("light", PHONE), ("dark", PHONE)]
QUICK_LOOKS = [("light", WIDE), ("dark", PHONE)]
"""Each scheme and each size once: contrast is a matter of the scheme, what fits is one of the size."""
SCREENS = {
    "jobs": ("#/jobs", "a.name"),
    "run": ("#/runs/{tuned}", "canvas"),
    "samples": ("#/runs/{tuned}?tab=samples", "article"),
    "plan": ("#/runs/{tuned}?tab=plan", "tbody tr"),
    "checkpoints": ("#/runs/{tuned}?tab=checkpoints", "tbody tr"),
    "certificates": ("#/runs/{tuned}?tab=certificates", ".facts"),
    "events": ("#/runs/{tuned}?tab=events", "tbody tr"),
    "log": ("#/runs/{tuned}?tab=log", ".log"),
    "failed": ("#/runs/{failed}", ".failure"),
    "playground": ("#/playground?left=invoices&right=mens-tiny", "#prompt"),
    "compare": ("#/compare?jobs={slower},{tuned}", "canvas"),
    "settings": ("#/compare?jobs={slower},{tuned}&tab=settings", "tbody tr"),
    "answers": ("#/compare?jobs={slower},{tuned}&tab=answers", "article"),
    "chosen": ("#/jobs?chosen={slower},{tuned}", ".chosen"),
    "gates": ("#/gates", "a.name"),
    "alias": ("#/gates/support", "tbody tr"),
    "policies": ("#/gates?tab=policies", ".card"),
    "receipts": ("#/gates?tab=receipts", "tbody tr"),
    "receipt": ("#/gates?tab=receipts&receipt={receipt}", ".gate"),
    "evals": ("#/evals", "a.name"),
    "eval-runs": ("#/evals/{eval}", "a.name"),
    "eval-items": ("#/evals/{eval}/{evaluated}", "article"),
    "eval-new": ("#/evals/new?file={file}", "#expected"),
    "eval-run": ("#/evals/{eval}?run=new&model=invoices", "#question"),
    "usage": ("#/usage?by=day,key,base", "tbody tr"),
    "system": ("#/usage?tab=system", "tbody tr"),
    "sign-ins": ("#/usage?tab=sign-ins", "tbody tr"),
    "new": ("#/new?data.train_file={file}", ".good"),
    "new-wrong": ("#/new?data.train_file={file}&exec.epochs=0", ".fault"),
    "files": ("#/files", "a.name"),
    "file": ("#/files/{file}", "main:has(.histogram):has(article .learnt)"),
    "file-faulty": ("#/files/{faulty}?length=64", "main:has(.histogram):has(article s)"),
    "no-file": ("#/files?purpose=evals&after=file-0", ".empty"),
    "nothing": ("#/jobs?q=nothing+at+all", ".empty"),
}
IN_THE_DOCS = {
    ("jobs", "light", WIDE): "console-jobs.png",
    ("run", "dark", WIDE): "console-run.png",
    ("samples", "light", WIDE): "console-samples.png",
    ("new", "light", WIDE): "console-new.png",
    ("compare", "dark", WIDE): "console-compare.png",
    ("alias", "light", WIDE): "console-alias.png",
    ("run", "light", PHONE): "console-phone.png",
    ("file-faulty", "light", WIDE): "console-data.png",
    ("file", "dark", PHONE): "console-data-phone.png",
    ("playground", "light", WIDE): "console-playground.png",
    ("eval-items", "light", WIDE): "console-evals.png",
    ("usage", "light", WIDE): "console-usage.png",
}


def draw(page: Page, path: Path) -> None:
    """Write a picture of a page, in as many colours as keep it small: with too few, curves lose theirs."""
    drawn = Image.open(io.BytesIO(page.screenshot()))
    scaled = drawn.resize((drawn.width * 3 // 4, drawn.height * 3 // 4)) if drawn.width > PHONE[0] else drawn
    for colours in (192, 128, 96, 64, 48):
        scaled.quantize(colours, kmeans=3, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size <= MOST_PICTURE:
            return


@pytest.mark.parametrize(
    ("scheme", "size"),
    [
        pytest.param(*look, id=f"{look[0]}-{look[1][0]}", marks=() if look in QUICK_LOOKS else pytest.mark.long)
        for look in LOOKS
    ],
)
def test_every_screen_is_for_everyone(
    visitor: Visitor,
    state: StorageState,
    tuned: dict[str, Any],
    slower: dict[str, Any],
    failed: dict[str, Any],
    receipt: str,
    faulty: str,
    evaluated: tuple[str, str],
    scheme: str,
    size: tuple[int, int],
) -> None:
    faults = []
    ids = {"tuned": tuned["id"], "slower": slower["id"], "failed": failed["id"], "receipt": receipt}
    ids |= {"file": tuned["contract"]["data"]["train_file"], "faulty": faulty}
    ids |= {"eval": evaluated[0], "evaluated": evaluated[1]}
    with visitor.visit(state, scheme=scheme, size=size, allowed=frozenset({422})) as (page, _):
        for name, (address, sign) in SCREENS.items():
            page.goto(f"{visitor.url}/{address.format(**ids)}")
            page.locator(sign).first.wait_for()
            page.locator(".connection.live").wait_for()
            if name == "playground":
                page.get_by_label("Your question").fill(QUESTION)
                page.keyboard.press("Control+Enter")
                page.get_by_role("group", name="Verdict").wait_for()
            expect(page.get_by_role("button", name="Copy as…"), f"every screen has it: {name}").to_have_count(1)
            faults += [f"{name}: {fault}" for fault in findings(page)]
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                faults.append(f"{name} is wider than the window")
            picture = IN_THE_DOCS.get((name, scheme, size))
            if picture and os.environ.get("MENS_UPDATE_GOLDEN"):
                draw(page, PICTURES / picture)
    assert not faults, "\n".join(faults)


def test_every_screen_is_reached_from_the_header_of_a_phone(visitor: Visitor, state: StorageState) -> None:
    with visitor.visit(state, size=PHONE, hash_="#/jobs") as (page, _):
        screens = page.get_by_role("navigation", name="Screens").get_by_role("link")
        for name in ("Jobs", "Data", "Evals", "Gates", "Playground", "Usage"):
            link = screens.filter(has_text=name)
            expect(link).to_be_in_viewport(ratio=1)
            link.click()
            expect(link).to_have_attribute("aria-current", "page")


def test_sign_in_and_dialogs_are_for_everyone(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any], receipt: str
) -> None:
    with visitor.visit() as (page, _):
        page.get_by_label("API key").wait_for()
        assert not findings(page)
    with visitor.visit(state, hash_=f"#/runs/{tuned['id']}") as (page, _):
        page.get_by_role("button", name="Copy as…").click()
        page.get_by_role("dialog", name="Copy as").wait_for()
        assert not findings(page)
    with visitor.visit(state, hash_="#/gates/support") as (page, _):
        page.get_by_role("button", name="Move or split").click()
        page.get_by_label("move without the evidence").check()
        assert not findings(page)


def test_pictures_of_the_docs_are_small_and_shown() -> None:
    text = (PICTURES.parent / "console.md").read_text()
    for picture in IN_THE_DOCS.values():
        assert f"pictures/{picture}" in text
        assert (PICTURES / picture).stat().st_size <= MOST_PICTURE
