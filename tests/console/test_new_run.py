"""A new run: the plan next to the form, faults at their fields, one job however often the button is pressed, and no
submission until it fits.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.console.browser import HOSTILE, Visitor, ask
from tests.system.loop import BASE, Installation, short_lesson

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page, Route, StorageState

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


@pytest.fixture(scope="module")
def lesson(installation: Installation) -> str:
    """Id of a training file."""
    return installation.upload_bytes("lesson.jsonl", short_lesson())


def start_button(page: Page) -> Any:
    return page.get_by_role("button", name="Start training")


def test_plan_follows_the_form_and_the_run_starts(
    visitor: Visitor, installation: Installation, state: StorageState, lesson: str
) -> None:
    with visitor.visit(state, hash_="#/jobs") as (page, watch):
        page.get_by_role("link", name="New run").click()
        page.get_by_text("Choose a training file: what").wait_for()
        expect(start_button(page)).to_be_disabled()
        assert not [request for request in watch.requests if request.url.endswith("/v1/plans")]
        page.get_by_label("Training file").select_option(lesson)
        page.get_by_text("It fits").wait_for()
        rate = page.get_by_role("row", name="exec.learning_rate")
        expect(rate.get_by_text("Mens (auto)")).to_be_visible()
        expect(page.get_by_label("Learning rate")).to_have_attribute("placeholder", "0.004")
        page.get_by_label("Epochs").fill("60")
        page.get_by_label("Name").fill("from-the-page")
        page.get_by_text("More settings").click()
        page.get_by_label("Serve the result").select_option("false")
        page.get_by_role("row", name="exec.epochs").get_by_text("60").wait_for()
        expect(page.get_by_role("row", name="exec.epochs").get_by_text("you")).to_be_visible()
        page.locator(".submit", has_text="It enters the queue").wait_for()
        page.wait_for_url(lambda url: "exec.epochs=60" in url)
        page.keyboard.press("Control+Enter")
        page.get_by_role("heading", name="from-the-page").wait_for()
        job_id = page.url.rpartition("/")[2]
    job = installation.call("POST", f"/v1/jobs/{job_id}/cancel")
    assert (job["contract"]["exec"]["epochs"], job["contract"]["artifact"]["publish"]) == (60, False)
    sources = installation.call("GET", f"/v1/jobs/{job_id}/preflight")["sources"]
    assert (sources["exec.epochs"], sources["exec.learning_rate"]) == ("explicit", "auto")


def test_bad_line_of_the_file_is_one_press_away(visitor: Visitor, state: StorageState, faulty: str) -> None:
    address = f"#/new?data.train_file={faulty}&model.hf_repo={BASE}"
    with visitor.visit(state, allowed=frozenset({400}), hash_=address) as (page, _):
        page.get_by_role("group", name="Bad lines").get_by_role("link", name="5", exact=True).click()
        page.get_by_role("article", name="Line 5").get_by_text("ROW_ROLE_UNKNOWN").wait_for()


def test_replay_file_that_a_plan_advises_is_chosen_in_the_form(
    visitor: Visitor, state: StorageState, lesson: str, installation: Installation
) -> None:
    general = installation.upload_bytes("general.jsonl", b'{"prompt": "Hi", "response": "Hello"}\n')
    with visitor.visit(state, hash_=f"#/new?data.train_file={lesson}&model.hf_repo={BASE}") as (page, _):
        page.get_by_text("More settings").click()
        page.get_by_label("Replay file").select_option(general)
        page.get_by_role("row", name="data.replay_file").get_by_text("you").wait_for()
        expect(page.get_by_role("group", name="Values without a field")).to_have_count(0)


def test_estimate_of_time_says_what_it_is_made_from(visitor: Visitor, state: StorageState, lesson: str) -> None:
    with visitor.visit(state, hash_=f"#/new?data.train_file={lesson}&model.hf_repo={BASE}") as (page, _):
        time = page.get_by_role("region", name="If it runs").locator(".fact", has_text="Training time")
        expect(time).to_contain_text(re.compile("as fast as an earlier run|from the size of the model|a rough guess"))


def test_faults_stand_at_their_fields(visitor: Visitor, state: StorageState, lesson: str) -> None:
    address = f"#/new?data.train_file={lesson}&exec.epochs=0&exec.learning_rate=quick"
    with visitor.visit(state, allowed=frozenset({422}), hash_=address) as (page, watch):
        epochs = page.get_by_label("Epochs")
        page.locator("[id='exec.epochs-fault']", has_text="greater than or equal to 1").wait_for()
        expect(page.locator("[id='exec.learning_rate-fault']", has_text="valid number")).to_be_visible()
        expect(epochs).to_have_attribute("aria-invalid", "true")
        expect(epochs).to_have_attribute("aria-describedby", re.compile(r"exec\.epochs-fault"))
        expect(start_button(page)).to_be_disabled()
        page.keyboard.press("Control+Enter")
        epochs.fill("2")
        page.get_by_label("Learning rate").fill("")
        page.get_by_text("It fits").wait_for()
        page.locator(".fault").first.wait_for(state="detached")
        assert not [request for request in watch.requests if request.url.endswith("/v1/jobs")]


def test_refusal_names_the_field_of_the_form_in_place_of_a_schema(
    visitor: Visitor, state: StorageState, lesson: str
) -> None:
    address = f"#/new?data.train_file={lesson}&exec.epochs=0"
    with visitor.visit(state, allowed=frozenset({422}), hash_=address) as (page, _):
        refusal = page.get_by_role("alert").filter(has_text="This cannot run")
        expect(refusal).to_contain_text("Correct what is marked in the form: Epochs.")
        expect(refusal).not_to_contain_text("openapi.json")


def test_an_address_makes_no_request_of_its_own(visitor: Visitor, state: StorageState, lesson: str) -> None:
    """Names of an object's prototype are not fields: they stay out of the form, of its body and of every later request."""
    body = quote(json.dumps({"kind": "finetune", "contract": {"data": {"train_file": lesson}}}))
    hostile = f"__proto__.method=POST&__proto__.json={body}&exec.constructor.method=POST"
    with visitor.visit(state, hash_=f"#/new?{hostile}&exec.epochs=3&exec.epochs.x=1") as (page, watch):
        page.get_by_text("Choose a training file: what").wait_for()
        expect(page.get_by_role("textbox", name="Epochs")).to_have_value("3")
        assert page.evaluate("[({}).method ?? null, ({}).json ?? null, Object.method ?? null]") == [None, None, None]
        page.get_by_role("link", name="Gates", exact=True).click()
        page.get_by_role("heading", name="Gates").wait_for()
        assert not [request for request in watch.requests if request.method != "GET"]


def test_nothing_starts_before_the_plan_fits(visitor: Visitor, state: StorageState, lesson: str) -> None:
    def answer(route: Route) -> None:
        plan = route.fetch().json()
        near = {"changes_result": True, "advice": "Set exec.seq_len to 64."}
        plan["preflight"]["estimate"] |= {"fits": False, "nearest_fit": near}
        route.fulfill(content_type="application/json", body=json.dumps(plan))

    with visitor.visit(state, hash_="#/jobs") as (page, watch):
        page.route("**/v1/plans", answer)
        page.goto(f"{visitor.url}/#/new?data.train_file={lesson}")
        page.get_by_text("It does not fit. Set exec.seq_len to 64.").wait_for()
        page.get_by_text("the plan does not fit").wait_for()
        expect(start_button(page)).to_be_disabled()
        page.keyboard.press("Control+Enter")
        page.unroute("**/v1/plans")
        page.get_by_label("Epochs").fill("3")
        page.get_by_text("the plan is being made").wait_for()
        page.keyboard.press("Control+Enter")
        page.get_by_text("It fits").wait_for()
        assert not [request for request in watch.requests if request.url.endswith("/v1/jobs")]


def test_second_press_after_a_lost_answer_is_the_same_job(
    visitor: Visitor, installation: Installation, state: StorageState, lesson: str
) -> None:
    created: list[str] = []

    def lose_the_first(route: Route) -> None:
        answer = route.fetch()
        created.append(answer.json()["id"])
        if len(created) == 1:
            route.abort()
        else:
            route.fulfill(response=answer)

    address = f"#/new?data.train_file={lesson}&exec.epochs=60&artifact.publish=false"
    with visitor.visit(state, hash_=address) as (page, watch):
        watch.is_offline = True
        page.route("**/v1/jobs", lose_the_first)
        page.get_by_text("It enters the queue").wait_for()
        start_button(page).click()
        page.get_by_text("Not submitted").wait_for()
        start_button(page).click()
        page.get_by_role("navigation", name="Parts of the run").wait_for()
    assert len(created) == 2
    assert created[0] == created[1]
    installation.call("POST", f"/v1/jobs/{created[0]}/cancel")


def test_viewer_sees_the_form_and_may_neither_plan_nor_train(
    visitor: Visitor, states: dict[str, StorageState], lesson: str
) -> None:
    body = {"kind": "finetune", "contract": {"data": {"train_file": lesson}}}
    with visitor.visit(states["viewer"], allowed=frozenset({403}), hash_=f"#/new?data.train_file={lesson}") as (
        page,
        watch,
    ):
        page.get_by_text("Training needs the role trainer").wait_for()
        expect(start_button(page)).to_be_disabled()
        expect(page.get_by_label("Epochs")).to_be_disabled()
        page.keyboard.press("Control+Enter")
        assert not [request for request in watch.requests if request.method == "POST"]
        assert [ask(page, "POST", path, body) for path in ("/v1/plans", "/v1/jobs")] == [403, 403]
    with visitor.visit(states["trainer"], hash_=f"#/new?data.train_file={lesson}") as (page, _):
        page.get_by_text("It enters the queue").wait_for()
        expect(start_button(page)).to_be_enabled()


def test_again_with_changes_takes_what_somebody_chose(
    visitor: Visitor, state: StorageState, tuned: dict[str, Any]
) -> None:
    with visitor.visit(state, hash_=f"#/runs/{tuned['id']}") as (page, _):
        page.get_by_role("link", name="Again, with changes").click()
        page.get_by_text("It enters the queue").wait_for()
        assert "from=" not in page.url
        expect(page.get_by_label("Learning rate")).to_have_value("0.004")
        expect(page.get_by_label("Epochs")).to_have_value(str(tuned["contract"]["exec"]["epochs"]))
        expect(page.get_by_label("Alias")).to_have_value("invoices")
        expect(page.get_by_label("Rank")).to_have_value("")
        extra = page.get_by_role("button", name="Remove exec.checkpoint_every")
        extra.click()
        extra.wait_for(state="detached")
        assert "checkpoint_every" not in page.url


def test_form_is_a_contract_and_a_file_is_sent(
    visitor: Visitor, installation: Installation, state: StorageState, tmp_path: Path
) -> None:
    rows = tmp_path / "<img src=x onerror=alert(1)>.jsonl"
    rows.write_bytes(short_lesson())
    with visitor.visit(state, hash_=f"#/new?model.hf_repo={BASE}&exec.epochs=2") as (page, _):
        page.get_by_label("or send a JSONL file").set_input_files(rows)
        page.get_by_text("It fits").wait_for()
        expect(page.get_by_label("Training file").locator("option:checked")).to_have_text(
            re.compile(f"^{re.escape(rows.name)}")
        )
        with page.expect_download() as download:
            page.get_by_role("button", name="Download contract").click()
        contract = json.loads(download.value.path().read_text())
        assert contract["exec"] == {"epochs": 2}
        changed = tmp_path / "contract.json"
        changed.write_text(json.dumps(contract | {"exec": {"epochs": 5, "warmup_steps": 3}}))
        page.get_by_label("Contract file").set_input_files(changed)
        page.get_by_role("button", name="Remove exec.warmup_steps").wait_for()
        expect(page.get_by_label("Epochs")).to_have_value("5")
        wrong = tmp_path / "wrong.json"
        wrong.write_text("[")
        page.get_by_label("Contract file").set_input_files(wrong)
        page.get_by_text("wrong.json is not a contract in JSON.").wait_for()
        page.get_by_role("button", name="Copy as…").click()
        dialog = page.get_by_role("dialog", name="Copy as")
        command = dialog.get_by_label("mens", exact=True).inner_text()
        assert "--epochs 5 --warmup-steps 3" in command
        expect(dialog.get_by_label("Python", exact=True)).to_contain_text('"epochs": 5')
    assert contract["data"]["train_file"] in {file["id"] for file in installation.call("GET", "/v1/files")["data"]}


def test_hostile_names_are_text(visitor: Visitor, state: StorageState, lesson: str) -> None:
    def answer(route: Route) -> None:
        found = route.fetch().json()
        one = found["data"][0]
        found["data"] = [{**one, "id": f"file-{place}", "filename": text} for place, text in enumerate(HOSTILE)]
        route.fulfill(content_type="application/json", body=json.dumps(found))

    with visitor.visit(state, hash_="#/jobs") as (page, _):
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.route(re.compile("/v1/files"), answer)
        page.goto(f"{visitor.url}/#/new")
        options = page.get_by_label("Training file").locator("option")
        options.nth(len(HOSTILE)).wait_for(state="attached")
        texts = options.all_text_contents()[1:]
        assert texts[0].startswith(HOSTILE[0])
        assert texts[3].startswith("\\u202egnp.exe")
        assert len(texts[4]) < 100
        expect(page.locator("main img, main script")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
