"""Without a shared folder, the whole loop runs on a bucket, PostgreSQL and Valkey, and a job continues on another
machine.

`make test` has the same loop on one machine (`test_demo.py`), and the kills, most of them while no job runs
(`test_restarts.py`, `test_chaos.py`); it tests the bucket and PostgreSQL separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.commands.demo import run_loop
from cli.demo.lessons import support
from shared.artifacts.s3.storage import S3Storage
from shared.settings import Settings
from tests.support.postgres import PostgresServer
from tests.support.s3_server import S3Server
from tests.support.valkey import Valkey, running_valkey
from tests.support.waiting import eventually
from tests.system.loop import ANSWER, BASE, IMPATIENCE, Installation, short_lesson
from tests.system.separate_machines import SeparateMachines, running_machines

pytestmark = [pytest.mark.long, pytest.mark.postgres]
KILL_AT_STEP = 45
"""Past the checkpoints at 20 and 40."""


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with running_valkey(tmp_path_factory.mktemp("valkey")) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def machines(
    home: Path,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: PostgresServer,
    s3_server: S3Server,
    valkey: Valkey,
) -> Iterator[SeparateMachines]:
    folder = tmp_path_factory.mktemp("machines")
    services = {"MENS_DATABASE_URL": postgres_server.fresh_url(), "MENS_BROKER_URL": valkey.url}
    environment = services | s3_server.environment("installation") | IMPATIENCE
    with running_machines(SeparateMachines(folder, home, environment), "api", "serving", "control", "first") as up:
        yield up


@pytest.fixture(scope="module")
def installation(machines: SeparateMachines) -> Installation:
    return Installation(machines)  # of a stack it needs the connection alone


@pytest.fixture
def storage(machines: SeparateMachines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Storage:
    """The bucket, as one more process sees it."""
    for name, value in machines.environment.items():
        if name.startswith(("AWS_", "MENS_S3_")):
            monkeypatch.setenv(name, value)
    return S3Storage(Settings(home=tmp_path))


def train(installation: Installation, file_id: str) -> str:
    """Id of a job of 120 steps; equal jobs must give equal bytes."""
    contract = {
        "model": {"hf_repo": BASE},
        "data": {"train_file": file_id},
        "exec": {"epochs": 24, "batch_size": 4, "grad_accum": 1, "learning_rate": 4e-3, "seq_len": 128}
        | {"checkpoint_every": 20},
    }
    body = {"contract": contract, "name": "equal", "kind": "finetune"}
    return str(installation.call("POST", "/v1/jobs", json=body)["id"])


@pytest.fixture(scope="module")
def equal_file(installation: Installation) -> str:
    """Id of the file of the equal jobs."""
    return installation.upload_bytes("equal.jsonl", short_lesson())


@pytest.fixture(scope="module")
def jobs_of_an_outage(
    machines: SeparateMachines, installation: Installation, valkey: Valkey, equal_file: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A job under which everything but its worker was killed, and one that waited for the same worker meanwhile."""
    job_id = train(installation, equal_file)
    installation.wait_for_step(job_id, 1)
    waiting_id = installation.train(name="waiting", publish=False, epochs=1)
    kills: tuple[tuple[int, Callable[[], None]], ...] = (
        (5, valkey.restart),  # with the waiting job's message, which was there alone
        (10, lambda: machines.restart("control")),
        (15, lambda: machines.restart("serving")),
        (20, lambda: machines.restart("api")),
    )
    for step, kill in kills:
        assert installation.wait_for_step(job_id, step)["state"] == "running"
        kill()
    machines.wait_until_ready()
    return installation.wait_for_success(job_id), installation.wait_for_success(waiting_id)


def messages(job: dict[str, Any]) -> list[str]:
    return [event["message"] for event in job["events"]]


def test_demo_succeeds(machines: SeparateMachines, installation: Installation, storage: S3Storage) -> None:
    assert run_loop(machines.connection, support())
    aliased = installation.call("GET", "/v1/aliases")["data"]
    assert [one["name"] for one in aliased] == ["support"]
    assert storage.digests("adapters")
    assert storage.digests("checkpoints") == [], "they were needed until the job had succeeded"
    for name, machine in machines.machines.items():
        kept = {path.name for path in machine.home.iterdir()}
        assert "storage" not in kept, name
        assert ("runs" in kept) == (name == "first"), name


def test_killed_api_valkey_control_worker_and_replica_lose_and_double_nothing(
    installation: Installation, jobs_of_an_outage: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    running, waiting = jobs_of_an_outage
    installation.assert_one_result(running)
    assert running["attempt"] == 1, "its worker went on"
    assert waiting["attempt"] == 1, "the control worker sent it to the queue again"
    listed = [job["id"] for job in installation.call("GET", "/v1/jobs")["data"] if job["name"] in ("equal", "waiting")]
    assert sorted(listed) == sorted([running["id"], waiting["id"]])


def test_killed_workers_job_continues_on_another_machine_with_equal_bytes(
    machines: SeparateMachines,
    installation: Installation,
    storage: S3Storage,
    equal_file: str,
    jobs_of_an_outage: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    unbroken, _ = jobs_of_an_outage
    job_id = train(installation, equal_file)
    installation.wait_for_step(job_id, KILL_AT_STEP)
    eventually(lambda: storage.digests("checkpoints"), 30, "a checkpoint is stored")
    machines.machines["first"].kill()
    second = machines.start("second")
    job = installation.wait_for_success(job_id)

    assert job["attempt"] == 2
    assert any("resumed from the checkpoint" in message for message in messages(job))
    assert job["result"]["adapter_id"] == unbroken["result"]["adapter_id"], "the same bytes, and so the same digest"
    assert job["result"]["adapters"] == unbroken["result"]["adapters"], "and so the checkpoints"
    assert ANSWER in installation.ask(job["result"]["adapter_id"])
    assert [path.name for path in (second.home / "runs" / job_id).iterdir()] == ["attempt-0002"]


def test_deleted_adapter_leaves_the_bucket(installation: Installation, storage: S3Storage) -> None:
    adapters = installation.call("GET", "/v1/adapters?q=equal@")["data"]
    (final,) = [one for one in adapters if one["final"]]
    digest = final["id"].partition("@")[2]
    assert digest in storage.digests("adapters")
    installation.call("DELETE", f"/v1/models/{final['id']}")
    eventually(lambda: digest not in storage.digests("adapters"), 60, "the adapter has left the bucket")
    assert installation.call("GET", f"/v1/adapters/{final['id']}")["state"] == "deleted"
