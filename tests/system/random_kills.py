"""Load and faults for an installation: jobs that publish, callers, and a `kill -9` or a pause of a random process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import psutil

from tests.system.loop import BASE, QUESTION, Installation
from tests.system.marker_load import ADAPTER_HEADER

VICTIMS = {"trainer": 8, "worker": 6, "control": 2, "api": 2, "valkey": 2, "serving": 1}
"""How often each is drawn; a replica seldom, because it takes most of a minute to be back."""
AGE_SECONDS = 25.0
"""How old a trainer is when it or its worker is struck, at most: it starts, trains, or has written checkpoints by then."""
PATIENCE_SECONDS = 40.0
"""How long a victim is waited for before another one is drawn."""
PAUSED = 0.2
"""Share of the victims that are stopped and continue later, some after their lease has expired."""
PAUSE_SECONDS = (0.3, 9.0)
REST_SECONDS = (0.5, 5.0)
OPEN_JOBS, CALLERS = 2, 2
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"adapter": {"rank": 8, "alpha": 16}},
    "dropout": {"adapter": {"rank": 4, "alpha": 8, "dropout": 0.1}},
}
"""Jobs of a kind are equal, so their adapters must be."""
FINAL = ("succeeded", "failed", "cancelled")
POLL_SECONDS = 0.3


@dataclass
class JobLoad:
    """Jobs and callers, and their outcomes.

    Attributes:
        jobs: id → kind, of every job that was accepted.
        asked: answers by status, and connections that broke by what the client raised, counted.
        wrong: answers of an adapter that was not requested, or cut short without saying so.
        adapters: ids that were published, in their order.
        exact: kind → jobs that have succeeded and say ``bit_exact``.
        over: ids of the jobs that have ended.
    """

    installation: Installation
    file_id: str
    jobs: dict[str, str] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    adapters: list[str] = field(default_factory=list)
    exact: Counter[str] = field(default_factory=Counter)
    over: set[str] = field(default_factory=set)

    def submit(self, number: int) -> None:
        """Create a job; repeat the request with the same key until it is answered."""
        kind = list(KINDS)[number % len(KINDS)]
        settings = {"epochs": 6, "batch_size": 8, "grad_accum": 1, "learning_rate": 4e-3, "seq_len": 128}
        contract = {
            "model": {"hf_repo": BASE},
            "data": {"train_file": self.file_id},
            "exec": settings | {"checkpoint_every": 10},
            **KINDS[kind],
        }
        body = {"contract": contract, "name": f"equal-{kind}", "kind": "finetune"}
        answer = self.persist("POST", "/v1/jobs", json=body, headers={"Idempotency-Key": f"{self.file_id}-{number}"})
        self.jobs[answer["id"]] = kind

    def persist(self, method: str, path: str, **request: Any) -> Any:
        """Return an answer of the API that does not report an outage."""
        while True:
            with suppress(httpx.TransportError), self.installation.connection.client(timeout=10) as client:
                response = client.request(method, path, **request)
                if response.status_code < 500 and response.status_code != 429:
                    assert not response.is_error, response.text
                    return response.json()
            time.sleep(POLL_SECONDS)

    def open_jobs(self) -> list[str]:
        """Ids of the jobs that are not over; published adapters are noted."""
        for job_id in [job_id for job_id in self.jobs if job_id not in self.over]:
            job = self.persist("GET", f"/v1/jobs/{job_id}")
            if job["state"] in FINAL:
                self.over.add(job_id)
            if job["state"] == "succeeded":
                self.exact[self.jobs[job_id]] += job["result"]["resume"]["guarantee"] == "bit_exact"
                if job["result"]["adapter_id"] not in self.adapters:
                    self.adapters.append(job["result"]["adapter_id"])
        return [job_id for job_id in self.jobs if job_id not in self.over]

    def keep_submitting(self, over: threading.Event) -> None:
        """A new job whenever one of the open ones has ended."""
        number = 0
        while not over.wait(POLL_SECONDS):
            for _ in range(OPEN_JOBS - len(self.open_jobs())):
                self.submit(number)
                number += 1

    def keep_asking(self, over: threading.Event, seed: int) -> None:
        """Questions to the base and to whatever has been published; an error is counted, a wrong answer is kept."""
        random = Random(seed)
        while not over.wait(random.random()):
            model = random.choice([BASE, *self.adapters])
            body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16}
            try:
                with self.installation.connection.client(timeout=30) as client:
                    answer = client.post("/v1/chat/completions", json=body | {"temperature": 0})
            except httpx.TransportError as error:
                self.asked[type(error).__name__] += 1
                continue
            self.asked[str(answer.status_code)] += 1
            if answer.status_code == 200:
                served = answer.headers.get(ADAPTER_HEADER, BASE)
                (ended,) = {choice["finish_reason"] for choice in answer.json()["choices"]}
                if served != model or ended not in ("stop", "length"):
                    self.wrong.append(f"{model} was asked, {served} answered {answer.text[:200]}")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Submit and send requests until the block ends; the jobs continue."""
        over, faults = threading.Event(), []

        def guarded(work: Callable[..., None], *arguments: Any) -> None:
            try:
                work(over, *arguments)
            except BaseException as error:  # raised below, in the test's own thread
                faults.append(error)

        threads = [threading.Thread(target=guarded, args=(self.keep_submitting,))]
        threads += [threading.Thread(target=guarded, args=(self.keep_asking, seed)) for seed in range(CALLERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()
        if faults:
            raise faults[0]


@dataclass
class Misfortune:
    """Kills and stops of processes."""

    installation: Installation
    random: Random
    killed: Counter[str] = field(default_factory=Counter)
    paused: Counter[str] = field(default_factory=Counter)

    def strike(self) -> None:
        """Kill or pause one process that is there, and rest."""
        while not (found := self._await(self.random.choices(list(VICTIMS), list(VICTIMS.values()))[0])):
            pass
        name, victim = found
        if self.random.random() < PAUSED:
            self.paused[name] += 1
            with suppress(psutil.NoSuchProcess):  # it ended meanwhile, with its supervisor
                victim.suspend()
                time.sleep(self.random.uniform(*PAUSE_SECONDS))
                victim.resume()
        else:
            self.killed[name] += 1
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        time.sleep(self.random.uniform(*REST_SECONDS))

    def _await(self, name: str) -> tuple[str, psutil.Process] | None:
        """The process of that name, once it is there and, for the worker, works; None after some time."""
        age, deadline = self.random.uniform(0, AGE_SECONDS), time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with suppress(psutil.NoSuchProcess):
                if victim := self._find(name, age):
                    return name, victim
            time.sleep(POLL_SECONDS)
        return None

    def _find(self, name: str, age: float) -> psutil.Process | None:
        if not (pid := self.installation.stack.pid("worker" if name == "trainer" else name)):
            return None
        process = psutil.Process(pid)
        if name not in ("trainer", "worker"):
            return process
        trainers = [
            child
            for child in process.children()
            if "worker.train" in child.cmdline() and time.time() - child.create_time() > age
        ]
        if not trainers:
            return None
        return process if name == "worker" else trainers[0]
