"""One installation of the tiny base with real jobs, and one Chromium, for all tests of the console.

The browser has module scope and not session scope: while Playwright runs, its event loop runs in this process, and no
other test can call `asyncio.run`.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import StorageState

    from tests.console.browser import Visitor
    from tests.system.loop import Installation


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """The installation, running, with sample answers at the end of its runs."""
    from cli.commands.bases.tiny import build
    from cli.standalone.stack import Stack, running_stack
    from shared.settings import Settings
    from tests.console.browser import need_chromium
    from tests.system.loop import BASE, IMPATIENCE, Installation

    need_chromium()
    home = tmp_path_factory.mktemp("console")
    build(Settings(home=home), BASE)
    with running_stack(Stack(home, BASE, environment=IMPATIENCE | {"MENS_SAMPLE_ANSWERS": "4"})) as stack:
        yield Installation(stack)


@pytest.fixture(scope="session")
def tuned(installation: Installation) -> dict[str, Any]:
    """A finished run, whose alias has its name."""
    return installation.wait_for_success(installation.train(name="invoices", alias="invoices"))


@pytest.fixture(scope="session")
def slower(installation: Installation) -> dict[str, Any]:
    """A finished run with another rate and fewer epochs."""
    job_id = installation.train(name="invoices-low", publish=False, learning_rate=1e-3, epochs=6)
    return installation.wait_for_success(job_id)


@pytest.fixture(scope="session")
def receipt(installation: Installation, tuned: dict[str, Any]) -> str:
    """Id of a receipt of the run's adapter, under the policy of the alias `support`, which is split."""
    from tests.console.browser import POLICY

    adapter = tuned["result"]["adapter_id"]
    stored = installation.call("GET", f"/v1/jobs/{tuned['id']}/checkpoints")["data"]
    other = next(one["id"] for one in stored if one["published"] and not one["final"])
    split = [{"adapter": adapter, "weight": 90}, {"adapter": other, "weight": 10}]
    installation.call("PUT", "/v1/aliases/support", json={"adapter": other, "reason": "The first that is of use."})
    installation.call("PUT", "/v1/aliases/support", json={"targets": split, "reason": "A tenth stays for a week."})
    installation.call("POST", "/v1/policies", json={"name": "support", "source": POLICY})
    installation.call("PUT", "/v1/policy_assignments/alias:support", json={"policy": "support"})
    job = installation.call("POST", "/v1/receipts", json={"adapter": adapter, "alias": "support"})
    installation.wait_for_success(job["id"])
    return str(installation.call("GET", "/v1/receipts", params={"job": job["id"]})["data"][0]["id"])


@pytest.fixture(scope="session")
def evaluated(installation: Installation, tuned: dict[str, Any]) -> tuple[str, str]:
    """Ids of an eval and of its run, which compares the tuned model with its base. Any answer to the first row passes,
    none to the others.
    """
    from tests.system.loop import BASE

    check = {"type": "string_check", "name": "equals", "operation": "ilike"}
    check |= {"input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"}
    schema = {"type": "object", "properties": {"question": {"type": "string"}, "answer": {"type": "string"}}}
    config = {"type": "custom", "item_schema": schema, "include_sample_schema": True}
    body = {"name": "Invoices", "data_source_config": config, "testing_criteria": [check]}
    eval_id = str(installation.call("POST", "/v1/evals", json=body)["id"])
    rows = [{"item": {"question": f"<b>{number}</b>?", "answer": "no answer" if number else ""}} for number in range(3)]
    prompt = {"type": "template", "template": [{"role": "user", "content": "{{ item.question }}"}]}
    source = {
        "type": "completions",
        "model": tuned["result"]["adapter_id"],
        "input_messages": prompt,
        "source": {"type": "file_content", "content": rows},
        "sampling_params": {"temperature": 0, "max_completion_tokens": 16, "seed": 1},
    }
    run = {"name": "invoices", "data_source": source, "mens": {"incumbent": BASE}}
    made = installation.call("POST", f"/v1/evals/{eval_id}/runs", json=run)
    installation.wait_for_success(made["id"])
    return eval_id, str(made["id"])


@pytest.fixture(scope="session")
def failed(installation: Installation) -> dict[str, Any]:
    """A run that was stopped for what it may use."""
    file = installation.upload()
    contract = {
        "model": {"name": "mens-tiny"},
        "data": {"train_file": file},
        "exec": {"epochs": 200, "batch_size": 4, "grad_accum": 1, "learning_rate": 4e-3},
        "artifact": {"publish": False},
    }
    job = installation.call(
        "POST", "/v1/jobs", json={"kind": "finetune", "name": "refunds", "max_wall_seconds": 3, "contract": contract}
    )
    return installation.wait(job["id"], lambda now: now["state"] == "failed")


@pytest.fixture(scope="session")
def faulty(installation: Installation) -> str:
    """Id of a file with bad lines (3 and 5), a repeated row (4), rows that are long (6) and hostile (7), and good ones."""
    from tests.console.browser import HOSTILE

    rows = [{"prompt": f"When is invoice {n} due?", "response": f"On {n} December."} for n in range(1, 41)]
    long = {"prompt": "Many lines of an invoice. " * 40, "response": "Paid."}
    hostile = {
        "prompt": "\n".join(one for one in HOSTILE if "\ud800" not in one and len(one) < 100),
        "response": "</script>\u202e\u0000",
    }
    lines = [json.dumps(row).encode() for row in [*rows[:2], rows[0], long, hostile, *rows[2:]]]
    lines.insert(2, b'{"prompt": "<img src=x onerror=alert(1)>')
    lines.insert(4, b'{"messages": [{"role": "<b>boss</b>", "content": "x"}]}')
    return installation.upload_bytes("invoices.jsonl", b"\n".join(lines))


@pytest.fixture(scope="module")
def visitor(installation: Installation) -> Iterator[Visitor]:
    """A browser that looks at the installation."""
    from playwright.sync_api import sync_playwright

    from tests.console.browser import Visitor, need_chromium, routes_of

    routes = routes_of(installation.call("GET", "/v1/openapi.json"))
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=need_chromium(), args=arguments)
        yield Visitor(browser, installation.connection.url, routes)
        browser.close()


@pytest.fixture(scope="module")
def state(visitor: Visitor, installation: Installation) -> StorageState:
    """Storage of the browser of a person who has signed in with the first key of the installation."""
    from tests.console.browser import sign_in

    with visitor.visit() as (page, _):
        sign_in(page, installation.connection.key)
        return page.context.storage_state()


@pytest.fixture(scope="module")
def states(visitor: Visitor, installation: Installation, state: StorageState) -> dict[str, StorageState]:
    """Storage of the browsers of people with each role."""
    from tests.console.browser import sign_in

    found = {"admin": state}
    for role in ("viewer", "trainer"):
        name = f"{role}-{secrets.token_hex(4)}"  # each module has its own
        key = installation.call("POST", "/v1/keys", json={"name": name, "role": role})
        with visitor.visit() as (page, _):
            sign_in(page, key["secret"])
            found[role] = page.context.storage_state()
    return found
