"""Checkpoints answer chats while their job trains, and after it was cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from cli.commands.bases.tiny import build
from cli.standalone.stack import Stack, running_stack
from shared.settings import Settings
from tests.support.waiting import eventually
from tests.system.loop import BASE, IMPATIENCE, QUESTION, Installation

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    home = tmp_path_factory.mktemp("live")
    build(Settings(home=home), BASE)
    with running_stack(Stack(home, BASE, environment=IMPATIENCE | {"MENS_LIVE_CHECKPOINTS": "true"})) as stack:
        yield Installation(stack)


def listed(client: OpenAI, job_id: str) -> list[Any]:
    return list(client.fine_tuning.jobs.checkpoints.list(job_id, limit=1))


def test_a_checkpoint_answers_while_its_job_trains_and_after_a_cancel(live: Installation) -> None:
    client = live.openai()
    job_id = live.train(name="live", epochs=400, checkpoint_every=5)
    found = eventually(lambda: listed(client, job_id), seconds=120)
    job = live.job(job_id)
    assert (job["state"], job["stage"]) == ("running", "training")
    model = found[0].fine_tuned_model_checkpoint
    certificates = live.call("GET", f"/v1/adapters/{model}")["certificates"]
    assert [one["passed"] for one in certificates.values()] == [True]
    answers = [answer_of(client, model)]
    live.call("POST", f"/v1/jobs/{job_id}/cancel")
    cancelled = live.wait(job_id, lambda job: job["state"] == "cancelled")
    assert "fine_tuned_model" not in cancelled["result"]
    left = listed(client, job_id)
    steps = [one.step_number for one in left]
    assert steps == sorted(set(steps), reverse=True)
    assert 1 <= len(left) <= 4
    answers.append(answer_of(client, left[0].fine_tuned_model_checkpoint))
    assert all(answers)
    assert client.fine_tuning.jobs.retrieve(job_id).fine_tuned_model is None


def answer_of(client: OpenAI, model: str) -> str:
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=16
    )
    return str(answer.choices[0].message.content)
