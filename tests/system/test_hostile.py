"""A thousand hostile requests by two tenants and by nobody: no 5xx, bounded memory, and a calm caller who does not notice.

``-s`` prints the counts; docs/usage.md has those of one run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.migrate import migrate
from api.settings import ApiSettings
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.keys import Keys
from shared.database.records import Kind, Submission
from shared.database.tenancy import Role
from tests.support.api_process import ApiProcess, running_api
from tests.support.builders import BASE
from tests.support.hostile_load import STREAMS

pytestmark = pytest.mark.system

COUNT = 1000
MOST_MEMORY = 130 << 20
"""Bytes by which the process may grow."""
MOST_DELAY = 1.0
"""Seconds that a calm request may wait while the API works for others. Counted in the API's computing time where that is less
than the time that passes, because the machine may be busy with other things."""
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


class CalmCaller:
    """Sends one request after the other, each over a connection of its own."""

    def __init__(self, api: ApiProcess, key: str) -> None:
        secret, self._job = key.split(":")
        self._api, self._headers = api, {"Authorization": f"Bearer {secret}"}
        self.longest_wait = self.slowest = 0.0
        self.count = 0

    def call(self) -> None:
        """Send each kind of request once."""
        with httpx.Client(base_url=self._api.url, headers=self._headers, trust_env=False, timeout=60) as client:
            for path in ("/health", "/v1/models", f"/v1/jobs/{self._job}"):
                began, computed = time.monotonic(), self._api.cpu_seconds
                assert client.get(path).status_code == 200
                passed, computed = time.monotonic() - began, self._api.cpu_seconds - computed
                self.slowest, self.longest_wait = (
                    max(self.slowest, passed),
                    max(self.longest_wait, min(passed, computed)),
                )
                self.count += 1


def test_hostile_requests_hurt_nobody(api: ApiProcess, keys: dict[str, str]) -> None:
    calm = CalmCaller(api, keys["calm"])
    calm.call()
    before = api.peak_memory
    command = [sys.executable, "-m", "tests.support.hostile_load", api.url, str(COUNT), keys["acme"], keys["other"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        while load.poll() is None:
            calm.call()
        assert load.stdout
        statuses = {int(status): count for status, count in json.loads(load.stdout.read()).items()}
    grown = api.peak_memory - before
    print(f"statuses {statuses}; {calm.count} calm requests, the slowest {calm.slowest:.2f} s,")
    print(f"the longest wait for others {calm.longest_wait:.2f} s; {grown >> 20} MiB more memory")

    assert load.returncode == 0
    assert sum(statuses.values()) == COUNT + 2 * STREAMS
    assert not [status for status in statuses if status >= 500]
    assert statuses[429] >= 2 * (STREAMS - STREAM_LIMIT), "streams, and keys that were guessed"
    assert statuses[200] >= 2 * STREAM_LIMIT
    assert grown < MOST_MEMORY
    assert calm.longest_wait < MOST_DELAY
    assert api.process.poll() is None
    calm.call()
