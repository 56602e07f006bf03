"""One run: its curves and their zoom, answers, plan, proofs and events; for a failed run, the reason comes first."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.console.browser import PHONE, Visitor
from tests.system.loop import Installation

if TYPE_CHECKING:
    from playwright.sync_api import Route, StorageState

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


def test_losses_are_overlaid_zoomed_and_in_a_table(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any]
) -> None:
    steps = tuned["plan"]["optimizer_steps"]
    with visitor.visit(state, hash_=f"#/runs/{tuned['id']}") as (page, _):
        plot = page.get_by_role("region", name="Loss", exact=True)
        plot.locator("canvas").wait_for()
        plot.get_by_text("Values as a table").click()
        table = plot.get_by_role("table")
        expect(table.get_by_role("columnheader")).to_have_text(["step", "training", "validation"])
        rows = table.get_by_role("rowheader").all_text_contents()
        assert 10 < len(rows) <= 25
        assert rows[-1] == str(steps)
        box = plot.locator(".u-over").bounding_box()
        assert box
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 60, steps=5)
        page.mouse.up()
        page.get_by_role("button", name="show all").wait_for()
        page.wait_for_url(lambda url: "from=" in url)
        page.wait_for_url(lambda url: "to=" in url)
        page.get_by_label("log scale").check()
        page.get_by_label("smooth").select_option("0.9")
        page.wait_for_url(lambda url: "log=1" in url)
        page.wait_for_url(lambda url: "smooth=0.9" in url)
        page.reload()
        page.get_by_role("button", name="show all").click()
        plot.get_by_role("group", name="Loss: arrow keys").focus()
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        plot.locator(".at", has_text="step").wait_for()


CHARTS = {
    "Learning rate": "learning_rate",
    "Gradient norm": "grad_norm",
    "Tokens per second": "tokens_per_second",
    "Memory": "memory_bytes",
}
UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def number_of(text: str) -> float:
    """The number that a page shows with three digits and a unit."""
    digits, _, unit = text.partition(" ")
    return float(digits) * UNITS[unit]


def test_small_charts_show_the_values_of_the_run(
    visitor: Visitor, installation: Installation, state: StorageState, tuned: dict[str, Any]
) -> None:
    query = {"series": ",".join(CHARTS.values())}
    series = installation.call("GET", f"/v1/jobs/{tuned['id']}/metrics", params=query)["series"]
    with visitor.visit(state, hash_=f"#/runs/{tuned['id']}") as (page, _):
        for title, name in CHARTS.items():
            steps, values = series[name]["step"], series[name]["value"]
            assert steps[-1] == tuned["plan"]["optimizer_steps"], name
            chart = page.get_by_role("region", name=title, exact=True)
            chart.locator("canvas").wait_for()
            expect(chart.locator(".at")).to_have_text("last")
            shown = number_of(chart.locator(".legend b").inner_text())
            assert shown == pytest.approx(values[-1], rel=0.006), name
            chart.get_by_text("Values as a table").click()
            rows = chart.get_by_role("rowheader")
            expect(rows.last).to_have_text(str(steps[-1]))
            read = dict(zip(map(int, rows.all_inner_texts()), chart.get_by_role("cell").all_inner_texts(), strict=True))
            assert len(read) == 25, name
            for step, text in read.items():
                assert number_of(text) == pytest.approx(values[steps.index(step)], rel=0.006), (name, step)


def test_answers_stand_next_to_the_base_and_the_reference(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any]
) -> None:
    samples = tuned["result"]["self_evaluation"]["sample_answers"]
    equal = len([one for one in samples if one["tuned"].strip() == one["reference"].strip()])
    with visitor.visit(state, hash_=f"#/runs/{tuned['id']}") as (page, _):
        page.get_by_text(f"{equal} of {len(samples)} answers equal the reference.").wait_for()
        page.get_by_role("link", name="samples").click()
        first = page.get_by_role("article").first
        for text in (samples[0]["prompt"], samples[0]["reference"], samples[0]["base"]):
            first.get_by_text(text.strip(), exact=True).first.wait_for()


def test_sample_goes_to_the_playground_with_its_system_message(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any]
) -> None:
    """Without it a model that was tuned with one answers as if it had learnt nothing. The address has neither."""
    evaluation = tuned["result"]["self_evaluation"]
    sample = evaluation["sample_answers"][0] | {"system": "Answer in one word.", "prompt": "When is <b>it</b> due?"}
    result = tuned["result"] | {"self_evaluation": evaluation | {"sample_answers": [sample]}}

    def job(route: Route) -> None:
        route.fulfill(content_type="application/json", body=json.dumps(tuned | {"result": result}))

    with visitor.visit(state, hash_="#/playground") as (page, _):
        page.get_by_role("heading", name="Playground").wait_for()
        page.route(f"**/v1/jobs/{tuned['id']}", job)
        for way in ("Ask it beside its base", "Ask both again"):
            page.evaluate(f"location.hash = '#/runs/{tuned['id']}{'?tab=samples' if 'again' in way else ''}'")
            page.get_by_role("link", name=way).click()
            expect(page.get_by_label("Your question")).to_have_value(sample["prompt"])
            expect(page.get_by_label("system message")).to_have_value(sample["system"])
            expect(page.get_by_label("Left model", exact=True)).to_have_value(tuned["result"]["adapter_id"])
            assert "due" not in page.url
        page.get_by_role("navigation", name="Screens").get_by_role("link", name="Jobs").click()
        page.get_by_role("navigation", name="Screens").get_by_role("link", name="Playground").click()
        expect(page.get_by_label("Your question")).to_have_value("")  # it was handed over once


def test_rows_of_an_epoch_are_those_that_are_trained_on(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any]
) -> None:
    plan = tuned["plan"]
    assert plan["validation_rows"]
    rows = plan["train"]["rows"] - plan["validation_rows"]
    with visitor.visit(state, hash_=f"#/runs/{tuned['id']}") as (page, _):
        expect(page.get_by_label("Facts")).to_contain_text(f"epochs of {rows} rows")


@pytest.mark.parametrize(("stage", "is_known"), [("training", True), ("publishing", False)])
def test_time_left_is_of_the_training_alone(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any], stage: str, is_known: bool
) -> None:
    progress = {"step": 9, "total_steps": 10, "eta_seconds": 42.0}
    running = tuned | {"state": "running", "stage": stage, "progress": progress, "finished_at": None, "result": None}

    def job(route: Route) -> None:
        route.fulfill(content_type="application/json", body=json.dumps(running))

    with visitor.visit(state, hash_="#/playground") as (page, _):
        page.get_by_role("heading", name="Playground").wait_for()
        page.route(f"**/v1/jobs/{tuned['id']}", job)
        page.evaluate(f"location.hash = '#/runs/{tuned['id']}'")
        page.get_by_text("9 / 10").wait_for()
        expect(page.get_by_text("about 42 s left")).to_have_count(int(is_known))


def test_waiting_run_says_when_it_starts_and_how_it_is_cancelled(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any]
) -> None:
    queue = {"position": 2, "estimated_start": "2026-12-01T10:15:00Z", "explanation": "Another job is before it."}
    waiting = tuned | {"state": "queued", "queue": queue, "started_at": None, "finished_at": None, "result": None}

    def job(route: Route) -> None:
        route.fulfill(content_type="application/json", body=json.dumps(waiting))

    with visitor.visit(state, hash_="#/playground") as (page, _):
        page.get_by_role("heading", name="Playground").wait_for()
        page.route(f"**/v1/jobs/{tuned['id']}", job)
        page.evaluate(f"location.hash = '#/runs/{tuned['id']}'")
        expect(page.get_by_text("Place 2 in the queue, starts about ")).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        dialog = page.get_by_role("dialog", name="Confirm")
        expect(dialog).to_contain_text("The run leaves the queue")
        expect(dialog.get_by_role("button", name="Cancel the run")).to_be_visible()


def test_cancelled_run_says_who_cancelled_it(visitor: Visitor, state: StorageState, installation: Installation) -> None:
    secret = installation.call("POST", "/v1/keys", json={"name": "alice", "role": "trainer"})["secret"]
    job = installation.train(name="withdrawn", publish=False, epochs=300)
    headers = {"Authorization": f"Bearer {secret}"}
    httpx.post(f"{installation.connection.url}/v1/jobs/{job}/cancel", headers=headers).raise_for_status()
    installation.wait(job, lambda now: now["state"] == "cancelled")
    with visitor.visit(state, hash_=f"#/runs/{job}") as (page, _):
        expect(page.get_by_text("cancelled by alice")).to_be_visible()
        page.get_by_role("navigation", name="Parts of the run").get_by_role("link", name="events").click()
        expect(page.get_by_role("group", name="Events").get_by_text("by alice")).to_be_visible()


def test_plan_says_who_decided_each_value(visitor: Visitor, state: StorageState, tuned: dict[str, Any]) -> None:
    with visitor.visit(state, hash_=f"#/runs/{tuned['id']}?tab=plan") as (page, _):
        row = page.get_by_role("row", name="exec.learning_rate")
        row.get_by_text("you").wait_for()
        expect(row.get_by_text("0.004")).to_be_visible()
        expect(page.get_by_role("row", name="exec.weight_decay")).to_have_count(0)
        page.get_by_label("defaults too").check()
        page.get_by_role("row", name="exec.weight_decay").get_by_text("default").wait_for()


def test_proofs_checkpoints_events_and_log_are_there(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any]
) -> None:
    with visitor.visit(state, hash_=f"#/runs/{tuned['id']}?tab=certificates") as (page, _):
        page.get_by_text("Trainer and replica differ by").first.wait_for()
        page.get_by_text("passed").first.wait_for()
        parts = page.get_by_role("navigation", name="Parts of the run")
        parts.get_by_role("link", name="checkpoints").click()
        page.get_by_text("(result)").wait_for()
        parts.get_by_role("link", name="events").click()
        page.get_by_text("Job created and queued.").wait_for()
        assert page.get_by_text("training loss=").count() <= page.get_by_text("Epoch").count()
        page.get_by_label("losses too").check()
        page.get_by_text("Step 1/").first.wait_for()
        parts.get_by_role("link", name="log").click()
        page.get_by_label("Log", exact=True).wait_for()


def test_failed_run_opens_with_its_reason(visitor: Visitor, state: StorageState, failed: dict[str, Any]) -> None:
    with visitor.visit(state, size=PHONE, hash_=f"#/runs/{failed['id']}") as (page, _):
        reason = page.get_by_role("region", name="Why it failed")
        reason.get_by_text(failed["error"]["code"]).wait_for()
        expect(reason).to_contain_text(failed["error"]["message"])
        expect(reason).to_contain_text("What to do:")
        box = reason.bounding_box()
        assert box
        assert box["y"] < PHONE[1]


def test_unknown_run_says_so(visitor: Visitor, state: StorageState) -> None:
    with visitor.visit(state, allowed=frozenset({404}), hash_="#/runs/ftjob-nothing") as (page, _):
        page.get_by_text("Job not found.").wait_for()


def test_button_that_is_pressed_twice_sends_once(visitor: Visitor, state: StorageState, tuned: dict[str, Any]) -> None:
    sent: list[Route] = []

    def running(route: Route) -> None:
        route.fulfill(content_type="application/json", body=json.dumps(tuned | {"state": "running"}))

    def hold(route: Route) -> None:
        sent.append(route)

    with visitor.visit(state, hash_="#/playground") as (page, _):
        page.get_by_role("heading", name="Playground").wait_for()
        page.route(f"**/v1/jobs/{tuned['id']}", running)
        page.route(f"**/v1/jobs/{tuned['id']}/cancel", hold)
        page.evaluate(f"location.hash = '#/runs/{tuned['id']}'")
        page.get_by_role("button", name="Cancel").click()
        button = page.get_by_role("dialog", name="Confirm").get_by_role("button", name="Cancel")
        button.dblclick()
        page.wait_for_timeout(300)
        assert len(sent) == 1
        expect(button).to_be_disabled()
        sent[0].fulfill(content_type="application/json", body=json.dumps(tuned))
        button.wait_for(state="hidden")


def test_run_that_failed_before_training_says_so(
    visitor: Visitor, installation: Installation, state: StorageState, failed: dict[str, Any]
) -> None:
    """No empty curve, no numbers that it does not have; commands in the reason look like commands."""
    job = installation.job(failed["id"])
    reason = {"code": "BASE_DIGEST_MISMATCH", "message": "The file is another one.", "retryable": False}
    remedy = "Restore the file, or register it with `mens base add`."
    job |= {"progress": {}, "result": None, "error": reason | {"remedy": remedy}}
    job["events"] = [one for one in job["events"] if one["type"] != "metrics"][:2]
    nothing = {"object": "job.metrics", "job_id": job["id"], "last_step": 0, "attempts": [], "series": {}}
    path = f"/v1/jobs/{job['id']}"
    with visitor.visit(state, hash_="#/jobs") as (page, _):
        page.route(re.compile(rf"{path}(\?.*)?$"), lambda route: route.fulfill(json=job))
        page.route(f"**{path}/metrics?*", lambda route: route.fulfill(json=nothing))
        page.route(f"**{path}/log?*", lambda route: route.fulfill(content_type="text/plain", body=""))
        page.goto(f"{visitor.url}/#/runs/{job['id']}")
        why = page.get_by_role("region", name="Why it failed")
        expect(why.get_by_role("heading", name="It failed before its first step")).to_be_visible()
        expect(why.locator("code")).to_have_text(["BASE_DIGEST_MISMATCH", "mens base add"])
        expect(why).not_to_contain_text("`")
        expect(page.get_by_role("region", name="What happened")).to_be_visible()
        expect(page.get_by_role("region", name="Loss")).to_have_count(0)
        expect(page.get_by_role("region", name="Facts")).not_to_contain_text("tokens/s")
        page.get_by_role("link", name="log", exact=True).click()
        expect(page.get_by_text("The run ended before training")).to_be_visible()
