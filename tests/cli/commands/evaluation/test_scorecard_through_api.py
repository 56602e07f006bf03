"""A scorecard through the API: its names, its keys, and the tokens that the replica counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.services import make_services
from cli.main import app
from shared.database.tenancy import Role
from tests.support.api_installation import application_of, settings_for
from tests.support.asgi_server import serve
from tests.support.builders import BASE
from tests.support.doubles import FakeJobQueue
from tests.support.scorecards import scorecard_condition, scorecard_spec
from tests.support.scripted_replica import ScriptedReplica
from tests.support.tiny_base import write_base

pytestmark = pytest.mark.network

GOOD = "def f(values):\n    return [2 * value for value in values]\n"


def test_a_base_is_sampled_with_the_callers_key(
    tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = ScriptedReplica()
    message = {"role": "assistant", "content": GOOD}
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    replica.answers({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
    settings = settings_for(tmp_path, write_base(tmp_path / "bases" / BASE))
    shutil.copy(sqlite_template, settings.home / "mens.db")
    services = make_services(settings, job_queue=FakeJobQueue())
    _, secret = services.keys.create("caller", "acme", Role.TRAINER)
    for replica_url in serve(replica):
        settings.serving_urls[:] = [replica_url]
        for url in serve(application_of(services), "on"):
            monkeypatch.setenv("MENS_API_URL", url)
            monkeypatch.setenv("MENS_API_KEY", secret)
            condition = scorecard_condition("base", "base", server_url=url, model_id=BASE)
            path = tmp_path / "spec.json"
            path.write_text(json.dumps(scorecard_spec(2, conditions=[condition])))
            result = CliRunner().invoke(app, ["scorecard", "run", str(path)])
            assert result.exit_code == 0, result.output
            verified = CliRunner().invoke(app, ["scorecard", "verify", str(tmp_path / "spec.scorecard")])
            assert verified.exit_code == 0, verified.output
    summary = json.loads((tmp_path / "spec.scorecard" / "summary.json").read_bytes())
    (found,) = summary["conditions"]
    assert (found["tokens_in_total"], found["tokens_out_total"], found["task_success"]) == (22, 6, 1)
    assert found["latency_p50_ms"] > 0
    sent = [body for sent_to, body in replica.asked if sent_to == "/v1/chat/completions"]
    assert [body["messages"][-1]["content"] for body in sent] == ["Write task 0.", "Write task 1."]
    assert {(body["temperature"], body["seed"]) for body in sent} == {(0, 1337)}
