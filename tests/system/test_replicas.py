"""Two real replicas behind the front door; one is killed under load: no answer is wrong, and only begun streams are cut."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.migrate import migrate
from shared.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from shared.db import Database
from shared.job import Kind, Submission
from shared.lease import LeaseLedger
from shared.ledger import Ledger
from shared.registry import NewAdapter, Registry
from shared.settings import Settings
from shared.storage import Storage
from tests.serving.conftest import KEY, Lab, _free_port, _stopper, _wait_ready, build_base

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]

ADAPTERS = 4
ASKERS = 6
PROMPTS = ["the red fox", "a ship sails", "hello"]
TOKENS = 120


class Program:
    """A process of the installation, which can be killed and started again with the same settings."""

    def __init__(self, lab: Lab, module: str, **settings: object) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        setting = "serving_port" if module == "serving" else "api_port"
        self._environment = {**os.environ, **lab.environment(**{setting: self.port}, **settings)}
        self._module, self._log = module, lab.home / f"{module}-{self.port}.log"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            env=self._environment,
            stdout=self._log.open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.stop = _stopper(self._process)

    def wait(self) -> None:
        _wait_ready(self._process, self.port, self._log)

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(10)


@dataclass
class Tier:
    """The front door, its replicas, and the adapters that all of them can serve."""

    door: Program
    replicas: list[Program]
    key: str
    models: list[str]

    def client(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.door.url, headers={"Authorization": f"Bearer {self.key}"}, timeout=60, trust_env=False
        )

    def seen(self) -> dict[str, dict[str, Any]]:
        with self.client() as client:
            return {replica["url"]: replica for replica in client.get("/v1/replicas").json()}

    def wait_for(self, url: str, state: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (seen := self.seen())[url]["state"] != state:
            assert time.monotonic() < deadline, seen
            time.sleep(0.1)


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tier]:
    base = tmp_path_factory.mktemp("replicas") / "base"
    build_base(base)
    lab = make_lab(base)
    models = [lab.publish(f"helper{seed}", seed=seed).adapter_id for seed in range(ADAPTERS)]
    replicas = [Program(lab, "serving", serving_max_loras=ADAPTERS) for _ in range(2)]
    urls = ",".join(replica.url for replica in replicas)
    key = register(lab, models)
    door = Program(lab, "api", serving_urls=urls, health_seconds=0.5)
    try:
        for program in (*replicas, door):
            program.wait()
        yield Tier(door, replicas, key, models)
    finally:
        for program in (door, *replicas):
            program.stop()


def make_lab(base: Path) -> Lab:
    home = base.parent / "home"
    source = LocalSource(path=str(base))
    entry = BaseModelEntry(name="tiny-base", source=source, digests=digest_model_folder(base))
    save_catalog(home / "catalog.json", Catalog(bases=[entry]))
    return Lab(home, base, entry, Storage(home / "storage"))


def register(lab: Lab, models: list[str]) -> str:
    """Publish the adapters in the ledger; the secret of a key."""
    url = Settings(home=lab.home).database_url
    migrate(url)
    database = Database(url)
    leases = LeaseLedger(database, 60)
    asked = Submission(kind=Kind.FINETUNE, base_model=lab.entry.name, name="helper", contract={}, plan={})
    lease = leases.claim(Ledger(database).submit(asked)[0].id, "test")
    assert lease
    adapters = [
        NewAdapter(
            id=model,
            digest=model.partition("@")[2],
            base_model=lab.entry.name,
            step=number,
            final=model == models[-1],
            published=True,
            manifest={},
        )
        for number, model in enumerate(models)
    ]
    leases.finish(lease, {}, adapters=adapters, alias="helper")
    secret = Registry(database).create_key("test")[1]
    database.close()
    return secret


@dataclass
class Outcome:
    """What became of one request."""

    question: tuple[str, str]
    streamed: bool
    ended: float = 0.0
    pieces: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def ask(client: httpx.Client, question: tuple[str, str], streamed: bool) -> Outcome:
    """One greedy completion, whatever becomes of it."""
    outcome = Outcome(question, streamed)
    body = {"model": question[0], "prompt": question[1], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    try:
        with client.stream("POST", "/v1/completions", json=body | {"stream": streamed}) as answer:
            if answer.status_code != 200:
                outcome.error = f"{answer.status_code} {answer.read()!r}"
            for line in answer.iter_lines() if not outcome.error else ():
                data = line.removeprefix("data: ")
                if data.startswith("{"):
                    outcome.pieces.append(json.loads(data)["choices"][0]["text"])
    except httpx.TransportError as error:
        outcome.error = repr(error)
    outcome.ended = time.monotonic()
    return outcome


def test_a_replica_that_is_killed_under_load(tier: Tier) -> None:
    questions = [(model, prompt) for model in tier.models for prompt in PROMPTS]
    with tier.client() as client:
        expected = {question: ask(client, question, False).text for question in questions}
    assert len(set(expected.values())) == len(questions), "every adapter has its own answers"
    for replica in tier.replicas:
        tier.wait_for(replica.url, "up", 10)
    done = threading.Event()

    def keep_asking(asker: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        with tier.client() as client:
            while not done.is_set():
                index = asker + len(outcomes)
                outcomes.append(ask(client, questions[index % len(questions)], index % 3 > 0))
        return outcomes

    with ThreadPoolExecutor(ASKERS) as pool:
        askers = [pool.submit(keep_asking, asker) for asker in range(ASKERS)]
        time.sleep(4)
        victim = max(tier.replicas, key=lambda replica: tier.seen()[replica.url]["in_flight"])
        cut = tier.seen()[victim.url]["in_flight"]
        killed = time.monotonic()
        victim.kill()
        tier.wait_for(victim.url, "down", 5)
        time.sleep(3)
        victim.start()
        victim.wait()
        tier.wait_for(victim.url, "up", 40)
        with httpx.Client(base_url=victim.url, headers={"Authorization": f"Bearer {KEY}"}) as direct:
            loaded = {model["id"] for model in direct.get("/v1/models").json()["data"]}
        time.sleep(1)
        done.set()
    outcomes = [outcome for asker in askers for outcome in asker.result()]
    failed = [outcome for outcome in outcomes if outcome.error]
    report = {"answers": len(outcomes), "in_flight_at_the_kill": cut, "cut": len(failed)}
    print(json.dumps(report))
    assert cut, "it was killed while it worked"
    assert not [o for o in outcomes if not o.error and o.text != expected[o.question]], "no answer is wrong"
    assert not [o for o in failed if not o.pieces], "what has not begun is asked elsewhere"
    assert all(expected[o.question].startswith(o.text) for o in failed), "what was cut was right as far as it went"
    assert all(o.streamed and abs(o.ended - killed) < 2 for o in failed), "only streams, and only then"
    assert len([o for o in outcomes if o.ended > killed + 2]) > 10
    assert loaded >= set(tier.models), "nobody told the new one, and it was asked for the busiest before it counted"
