"""Hostile requests by two tenants and without a key to an API alone: no 5xx, bounded memory, and another caller who is
not affected.

`make test` sends a thousand requests, `make long` several thousand; `test_hostile_users.py` sends those that reach a
replica. ``-s`` prints the counts; docs/usage.md has those of one run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from api.migrate import migrate
from api.settings import ApiSettings
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.records import Kind, Submission
from shared.database.tenancy import Role
from tests.support.api_process import ApiProcess, running_api
from tests.support.builders import BASE
from tests.support.calm_caller import CalmCaller
from tests.support.hostile_load import STREAMS

pytestmark = pytest.mark.system

COUNTS = [1000]
MOST_MEMORY = 130 << 20
"""Bytes by which the process may grow."""
MOST_DELAY = 5.0
"""Seconds that a calm request may wait because of others (`CalmCaller.longest_wait`). The twelve requests that the load has open
may all be bodies of the largest size, each parsed before it in about 0.1 s of a slow core; one that costs more is the fault.
"""
STREAM_LIMIT = 20


@pytest.fixture
def settings(tmp_path: Path) -> ApiSettings:
    settings = ApiSettings(home=tmp_path, broker_url="redis://127.0.0.1:9/0")
    migrate(settings.database_url)
    return settings


@pytest.fixture
def keys(settings: ApiSettings) -> dict[str, str]:
    """Secret and job of each tenant, as the load takes them; the calm caller's key among them."""
    database, found = Database(settings.database_url), {}
    for tenant in ("acme", "other", "calm"):
        submission = Submission(kind=Kind.FINETUNE, base_model=BASE, name="helper", contract={}, plan={})
        job, _ = Jobs(database).of(tenant).submit(submission)
        found[tenant] = f"{Keys(database).create('k', tenant, Role.ADMIN)[1]}:{job.id}"
    database.close()
    return found


@pytest.fixture
def api(settings: ApiSettings) -> Iterator[ApiProcess]:
    with running_api(settings, max_event_streams=str(STREAM_LIMIT)) as api:
        yield api


@pytest.mark.parametrize("count", COUNTS)
def test_hostile_requests_hurt_nobody(api: ApiProcess, keys: dict[str, str], count: int) -> None:
    secret, job = keys["calm"].split(":")
    client = partial(
        httpx.Client, base_url=api.url, headers={"Authorization": f"Bearer {secret}"}, trust_env=False, timeout=60
    )
    paths = ("/health", "/v1/models", f"/v1/jobs/{job}")
    calm = CalmCaller(client, [("GET", path, {}) for path in paths], [api.process.pid])
    calm.call()
    before = api.peak_memory
    command = [sys.executable, "-m", "tests.support.hostile_load", api.url, str(count), "", keys["acme"], keys["other"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        while load.poll() is None:
            calm.call()
        assert load.stdout
        statuses = {int(status): count for status, count in json.loads(load.stdout.read()).items()}
    grown = api.peak_memory - before
    print(f"statuses {statuses}; {calm.count} calm requests, the slowest {calm.slowest:.2f} s,")
    print(f"the longest wait for others {calm.longest_wait:.2f} s; {grown >> 20} MiB more memory")

    assert load.returncode == 0
    assert sum(statuses.values()) == count + 2 * STREAMS
    assert not [status for status in statuses if status >= 500]
    assert statuses[429] >= 2 * (STREAMS - STREAM_LIMIT), "streams, and keys that were guessed"
    assert statuses[200] >= 2 * STREAM_LIMIT
    assert grown < MOST_MEMORY
    assert calm.longest_wait < MOST_DELAY
    assert api.process.poll() is None
    calm.call()
