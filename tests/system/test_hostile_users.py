"""Hostile requests with a key to a real replica: no 5xx, bounded memory, no dead process, and another caller whose
chats are not affected.

The requests are short but expensive grammars and regular expressions, malformed messages, and streams whose callers
disconnect after the first line. `make test` sends several hundred, `make long` more than a thousand; ``-s`` prints the
counts, and docs/usage.md has those of one run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest

from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.tenancy import Role
from shared.settings import Settings
from tests.support.calm_caller import CalmCaller
from tests.system.loop import BASE, Installation

COUNTS = [300, pytest.param(1500, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
MOST_MEMORY = 256 << 20
"""Bytes by which the API, the replica's server and its engine may grow together."""
MOST_DELAY = 1.0
"""Seconds that a calm chat may wait because of others, beyond what it waits without them."""


@pytest.fixture
def secrets(installation: Installation, count: int) -> dict[str, str]:
    """A key of each tenant, for one test."""
    with closing(Database(Settings(home=installation.stack.home).database_url)) as database:
        keys = Keys(database)
        return {
            tenant: keys.create(f"hostile-{count}", tenant, Role.TRAINER)[1] for tenant in ("acme", "other", "calm")
        }


def serving_processes(installation: Installation) -> Iterator[psutil.Process]:
    """The API, the replica's server and its engine."""
    yield psutil.Process(installation.stack.pid("api"))
    server = psutil.Process(installation.stack.pid("serving"))
    yield server
    yield next(child for child in server.children() if "EngineCore" in " ".join(child.cmdline()))


def memory(processes: list[psutil.Process]) -> int:
    return sum(process.memory_info().rss for process in processes)


@pytest.mark.parametrize("count", COUNTS)
def test_hostile_users_hurt_nobody(installation: Installation, secrets: dict[str, str], count: int) -> None:
    processes = list(serving_processes(installation))
    chat = {"model": BASE, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {secrets['calm']}"}
    request = ("POST", "/v1/chat/completions", {"json": chat, "headers": headers})
    calm = CalmCaller(installation.connection.client, [request], [process.pid for process in processes])
    for _ in range(10):
        calm.call()
    alone, before = calm.longest_wait, memory(processes)
    calm.forget()
    command = [sys.executable, "-m", "tests.support.hostile_load", installation.connection.url, str(count), BASE]
    command += [f"{secrets[tenant]}:" for tenant in ("acme", "other")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        while load.poll() is None:
            calm.call()
        assert load.stdout
        statuses = {int(status): number for status, number in json.loads(load.stdout.read()).items()}
    grown = memory(processes) - before
    print(f"statuses {statuses}; {calm.count} calm chats, the slowest {calm.slowest:.2f} s,")
    print(f"the longest wait {calm.longest_wait:.2f} s, alone {alone:.2f} s; {grown >> 20} MiB more memory")

    assert load.returncode == 0
    assert sum(statuses.values()) == count
    assert not [status for status in statuses if status >= 500]
    assert min(statuses[200], statuses[400]) > count // 10
    assert grown < MOST_MEMORY
    assert calm.longest_wait - alone < MOST_DELAY
    assert list(serving_processes(installation)) == processes, "none has died"
