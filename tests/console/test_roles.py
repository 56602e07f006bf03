"""Permissions of each role: the request of every button, sent without the button, from the page of a viewer, a trainer
and a person of another tenant.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.console.browser import POLICY, Visitor, answer_to, sign_in
from tests.support.waiting import eventually
from tests.system.loop import BASE, Installation, short_lesson

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

CONSOLE = Path(__file__).resolve().parents[2] / "api" / "console"
RANKS = ("viewer", "trainer", "admin")
CALL = re.compile(r"(?:call|succeed)\(([^\s,]+), \{\s*method: \"(\w+)\"")
"""A call that is not a GET, in the sources of the console."""
CALLS = {
    "compare.js": {'POST "/v1/plans:compare"'},
    "file.js": {"DELETE path"},
    "files.js": {'POST "/v1/files"'},
    "gates.js": {
        'POST "/v1/receipts"',
        "POST `${path}/rollback`",
        "PUT path",
        "PUT `/v1/policy_assignments/${encodeURIComponent(scope)}`",
    },
    "new_eval.js": {'POST "/v1/evals"', "POST `${place}/runs`", 'POST "/v1/files"'},
    "new_run.js": {'POST "/v1/plans"', 'POST "/v1/files"', 'POST "/v1/jobs"'},
    "playground.js": {'POST "/v1/chat/completions"', 'POST "/v1/files"'},
    "run.js": {"POST `/v1/jobs/${encodeURIComponent(job.id)}/${asked}`"},
    "sign_ins.js": {"DELETE `${PATH}/${encodeURIComponent(asked.id)}`"},
}
"""Those calls of the screens. For each there is a row in `BUTTONS`. Signing in and out needs no role."""


@dataclass(frozen=True)
class Button:
    """The request of a button.

    Attributes:
        role: the lowest role that may send it.
        request: method and path, with names of objects in braces.
        body: its body; a text in braces is the name of an object.
        unseen: code of the refusal to somebody of another tenant; empty: it names no object of this one.
    """

    role: str
    request: str
    body: Any = None
    unseen: str = ""


CONTRACT = {
    "kind": "finetune",
    "contract": {
        "model": {"hf_repo": BASE},
        "data": {"train_file": "{file}"},
        "exec": {"epochs": 1},
        "artifact": {"publish": False},
    },
}
CHAT = {"messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 2}
EVAL = {
    "data_source_config": {"type": "custom", "item_schema": {"type": "object"}},
    "testing_criteria": [
        {
            "type": "string_check",
            "input": "{{{{ item.prompt }}}}",
            "reference": "{{{{ item.prompt }}}}",
            "operation": "eq",
        }
    ],
}
RUN = {
    "data_source": {
        "type": "completions",
        "model": "{adapter}",
        "input_messages": {"type": "template", "template": [{"role": "user", "content": "{{{{ item.prompt }}}}"}]},
        "source": {"type": "file_id", "id": "{items}"},
    }
}
BUTTONS = [
    Button("trainer", "POST /v1/jobs/{job}/pause", unseen="JOB_NOT_FOUND"),
    Button("trainer", "POST /v1/jobs/{job}/resume", unseen="JOB_NOT_FOUND"),
    Button("trainer", "POST /v1/jobs/{job}/cancel", unseen="JOB_NOT_FOUND"),
    Button("trainer", "POST /v1/plans", CONTRACT, "FILE_NOT_FOUND"),
    Button("trainer", "POST /v1/jobs", CONTRACT, "FILE_NOT_FOUND"),
    Button("trainer", "POST /v1/files", {}),
    Button("trainer", "DELETE /v1/files/{file}", unseen="FILE_NOT_FOUND"),
    Button("trainer", "POST /v1/evals", EVAL),
    Button("trainer", "POST /v1/evals/{eval}/runs", RUN, "EVAL_NOT_FOUND"),
    Button("trainer", "POST /v1/aliases/{alias}/rollback", {}, "ALIAS_NOT_FOUND"),
    Button("viewer", "POST /v1/chat/completions", {"model": "{alias}", **CHAT}, "MODEL_NOT_FOUND"),
    Button("trainer", "PUT /v1/aliases/{alias}", {"adapter": "{adapter}", "reason": "from the page"}),
    Button("trainer", "POST /v1/receipts", {"adapter": "{adapter}", "alias": "{governed}"}),
    Button("trainer", "PUT /v1/policy_assignments/alias:{alias}", {"policy": "{policy}"}, "POLICY_NOT_FOUND"),
    Button("admin", "PUT /v1/policy_assignments/tenant", {"policy": "{policy}"}, "POLICY_NOT_FOUND"),
    Button("admin", "PUT /v1/aliases/{governed}", {"adapter": "{adapter}", "reason": "forced", "override": True}),
    Button("viewer", "POST /v1/plans:compare", {"jobs": ["{job}"]}, "JOB_NOT_FOUND"),
    Button("admin", "DELETE /v1/sign_ins/{sign_in}", unseen="SIGN_IN_NOT_FOUND"),
]


def filled(body: Any, names: dict[str, str]) -> Any:
    """A body with ids in place of the names of objects."""
    if isinstance(body, str):
        return body.format(**names)
    if isinstance(body, dict):
        return {key: filled(value, names) for key, value in body.items()}
    return [filled(value, names) for value in body] if isinstance(body, list) else body


@dataclass
class OwnTenant:
    """A tenant of its own, with an object for each button.

    Attributes:
        names: ids of its objects, by the names that buttons have for them.
    """

    installation: Installation
    tenant: str
    names: dict[str, str]

    def key(self, role: str, tenant: str = "") -> str:
        """Secret of a new key."""
        body = {"name": f"{role}-{secrets.token_hex(4)}", "role": role, "tenant": tenant or self.tenant}
        return str(self.installation.call("POST", "/v1/keys", json=body)["secret"])

    def call(self, method: str, path: str, **request: Any) -> Any:
        """A call of an admin of the tenant."""
        headers = {"Authorization": f"Bearer {self.key('admin')}"}
        answer = httpx.request(method, self.installation.connection.url + path, headers=headers, timeout=60, **request)
        assert not answer.is_error, answer.text
        return answer.json()

    def state(self) -> list[Any]:
        """Whatever the requests of buttons would change."""
        job, *aliases = (
            self.call("GET", path)
            for path in (
                f"/v1/jobs/{self.names['job']}",
                *(f"/v1/aliases/{self.names[name]}" for name in ("alias", "governed")),
            )
        )
        lists = ("/v1/jobs", "/v1/files", "/v1/receipts", "/v1/policy_assignments", "/v1/evals")
        counts = [len(self.call("GET", path)["data"]) for path in lists]
        sign_ins = [one["id"] for one in self.call("GET", "/v1/sign_ins")["data"]]
        return [job["state"], [alias["version"] for alias in aliases], counts, self.names["sign_in"] in sign_ins]

    def ask(self, visitor: Visitor, secret: str) -> dict[str, tuple[int, str]]:
        """Status and code of the answer to each button's request, from the page of somebody."""
        with visitor.visit(allowed=frozenset({400, 403, 404, 409, 422})) as (page, _):
            sign_in(page, secret)
            return {
                button.request: answer_to(
                    page, *filled(button.request, self.names).split(" "), filled(button.body, self.names)
                )
                for button in BUTTONS
            }


@pytest.fixture(scope="module")
def owner(visitor: Visitor, installation: Installation, tuned: dict[str, Any]) -> OwnTenant:
    names = {name: f"{name}-{secrets.token_hex(4)}" for name in ("alias", "governed", "policy")}
    names["adapter"] = tuned["result"]["adapter_id"]
    owner = OwnTenant(installation, f"owner-{secrets.token_hex(4)}", names)
    files = {"file": ("lesson.jsonl", short_lesson())}
    names["file"] = owner.call("POST", "/v1/files", data={"purpose": "fine-tune"}, files=files)["id"]
    items = {"file": ("items.jsonl", b'{"item": {"prompt": "When?"}}')}
    names["items"] = owner.call("POST", "/v1/files", data={"purpose": "evals"}, files=items)["id"]
    names["eval"] = owner.call("POST", "/v1/evals", json=filled(EVAL, names))["id"]
    stored = installation.call("GET", f"/v1/jobs/{tuned['id']}/checkpoints")["data"]
    other = next(one["id"] for one in stored if one["published"] and not one["final"])
    for name in ("alias", "governed"):
        for adapter in (other, names["adapter"]):
            owner.call("PUT", f"/v1/aliases/{names[name]}", json={"adapter": adapter, "reason": "in order"})
    owner.call("POST", "/v1/policies", json={"name": names["policy"], "source": POLICY})
    owner.call("PUT", f"/v1/policy_assignments/alias:{names['governed']}", json={"policy": names["policy"]})
    body = filled(CONTRACT, names)
    body["contract"] |= {"exec": {"epochs": 500, "batch_size": 4}}
    names["job"] = owner.call("POST", "/v1/jobs", json=body)["id"]
    owner.call("POST", f"/v1/jobs/{names['job']}/pause")
    with visitor.visit() as (page, _):
        sign_in(page, owner.key("trainer"))
    names["sign_in"] = owner.call("GET", "/v1/sign_ins")["data"][0]["id"]
    return owner


def test_every_call_that_changes_something_is_known() -> None:
    found: dict[str, set[str]] = {}
    for source in CONSOLE.glob("screens/*.js"):
        text = source.read_text()
        calls = CALL.findall(text)
        assert text.count('method: "') == len(calls), f"a call of {source.name} is written in another form"
        if calls:
            found[source.name] = {f"{method} {path}" for path, method in calls}
    assert found == CALLS, "add the new call's request to BUTTONS, and the call to CALLS"


@pytest.mark.parametrize("role", ["viewer", "trainer"])
def test_role_may_do_no_more_without_the_button(visitor: Visitor, owner: OwnTenant, role: str) -> None:
    before = owner.state()
    answers = owner.ask(visitor, owner.key(role))
    for button in BUTTONS:
        status, code = answers[button.request]
        if RANKS.index(role) < RANKS.index(button.role):
            assert (status, code) == (403, "ROLE_INSUFFICIENT"), button.request
        else:
            assert status not in {401, 403, 404}, (button.request, status, code)
    if role == "viewer":
        assert owner.state() == before


def test_person_of_another_tenant_finds_nothing(visitor: Visitor, owner: OwnTenant) -> None:
    job = f"/v1/jobs/{owner.names['job']}"  # which the trainer above may just have cancelled
    eventually(lambda: not owner.call("GET", job)["requested"], 60, "its worker has stopped")
    before = owner.state()
    stranger = owner.key("admin", tenant=f"stranger-{secrets.token_hex(4)}")
    answers = owner.ask(visitor, stranger)
    for button in BUTTONS:
        if button.unseen:
            assert answers[button.request] == (404, button.unseen), button.request
    assert owner.state() == before
    with visitor.visit(hash_="#/jobs") as (page, _):
        sign_in(page, stranger)
        expect(page.locator("a.name", has_text="invoices").first).to_be_visible()  # of the tenant that all see
        expect(page.locator(f'a[href="#/runs/{owner.names["job"]}"]')).to_have_count(0)
