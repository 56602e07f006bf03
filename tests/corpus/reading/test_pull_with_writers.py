"""Eight writers insert and update on real PostgreSQL while pulls run and are killed: each version is read exactly once."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from corpus.shards import read_index
from tests.support.source_tables import SourceTable, pull_briefly

WRITERS = 8


class TableWriter(threading.Thread):
    """Inserts and changes rows of its own, in transactions that take a different time each.

    Attributes:
        versions: by row, the version that was committed last.
    """

    def __init__(self, table: SourceTable, number: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.versions: dict[int, int] = {}
        self._table, self._number, self._stop_event = table, number, stop
        self._random = random.Random(number)

    def run(self) -> None:
        connection = self._table.connect()
        row = self._number
        while not self._stop_event.is_set():
            changed = {}
            for _ in range(self._random.randint(1, 4)):
                if self.versions and self._random.random() < 0.4:
                    chosen = self._random.choice(list(self.versions))
                    changed[chosen] = self.versions[chosen] + len(changed) + 1
                    connection.execute(
                        "UPDATE notes SET answer = %s, changed = clock_timestamp() WHERE id = %s",
                        (f"row {chosen} version {changed[chosen]}", chosen),
                    )
                else:
                    row += WRITERS
                    changed[row] = 0
                    connection.execute(
                        "INSERT INTO notes VALUES (%s, 'question', %s, clock_timestamp())",
                        (row, f"row {row} version 0"),
                    )
            # The time of a row is older than its commit, now and then by more than the lag.
            time.sleep(self._random.choice((0.01, 0.01, 0.02, 0.05, 0.4)))
            if self._random.random() < 0.1:
                connection.rollback()
                continue
            connection.commit()
            self.versions |= changed
        connection.close()


@pytest.mark.postgres
@pytest.mark.parametrize("pulls", [16, pytest.param(50, marks=pytest.mark.long)])
def test_each_version_arrives_once_whatever_is_killed(postgres_server: Any, tmp_path: Path, pulls: int) -> None:
    table = SourceTable(postgres_server.empty_url(), tmp_path / "pulled")
    table.spec["lag"] = 0.2
    table.create()
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.support.source_tables"])
    stop = threading.Event()
    writers = [TableWriter(table, number, stop) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    killed, draw, longest = 0, random.Random(5), 0.35
    for number in range(pulls):
        process = processes.Process(target=pull_briefly, args=(table.url, str(table.folder)))
        process.start()
        # Every third one ends by itself.
        process.join(20 if number % 3 == 0 else draw.uniform(0.05 * longest, longest))
        process.kill()
        process.join()
        killed += process.exitcode == -9
        if number % 3 and process.exitcode == 0:  # a quick machine: the next one is killed sooner
            longest /= 2
        assert process.exitcode in (0, -9)
    stop.set()
    for writer in writers:
        writer.join()
    time.sleep(0.3)
    table.pull(limit=20, shard_bytes=4000)
    assert read_index(table.folder)
    committed = {row: version for writer in writers for row, version in writer.versions.items()}
    pulled = Counter(table.answers())
    assert killed >= pulls // 4
    assert len(committed) > 100
    assert [answer for answer, count in pulled.items() if count > 1] == []
    last = {f"row {row} version {version}" for row, version in committed.items()}
    assert sorted(last - pulled.keys()) == []
    assert {int(answer.split()[1]) for answer in pulled} == committed.keys()
    postgres_server.drop(table.url)
