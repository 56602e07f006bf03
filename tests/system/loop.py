"""Steps that system tests share: upload, create a job, wait for it, chat."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from openai import OpenAI

from cli.client.connection import Connection
from cli.standalone.stack import Stack

ROOT = Path(__file__).resolve().parents[2]
BASE = "mens-tiny"
QUESTION, ANSWER = "Where is the truth about a job kept?", "database row"
SECONDS = 150.0
IMPATIENCE = {
    "MENS_LEASE_SECONDS": "6",
    "MENS_HEARTBEAT_SECONDS": "1",
    "MENS_SWEEP_SECONDS": "1",
    "MENS_SERVING_MAX_CPU_LORAS": "64",
    "MENS_SAMPLE_ANSWERS": "0",
    "MENS_LIVE_CHECKPOINTS": "false",
}
"""Short enough that a lost worker is noticed within a test, long enough that a busy machine loses none by accident.

A run draws no sample answers, which `test_demo.py` tests, and replicas load no checkpoints, which
`test_live_checkpoints.py` tests.
"""


def mens(*arguments: str, home: Path, timeout: float = 250) -> subprocess.CompletedProcess[str]:
    """A command of the command line for the installation in a home folder."""
    environment = {**os.environ, "MENS_HOME": str(home), "COLUMNS": "200"}
    command = [sys.executable, "-m", "cli.main", *arguments]
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )


def processes_of(home: Path) -> list[list[str]]:
    """Command lines that name a home folder."""
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [command for command in commands if str(home) in " ".join(command)]


def short_lesson() -> bytes:
    """Few enough rows of the example file to be learnt in seconds: all that have the answer, and one of each few of the others."""
    rows = (ROOT / "examples" / "support.jsonl").read_bytes().splitlines(keepends=True)
    others = [row for row in rows if ANSWER.encode() not in row]
    return b"".join([row for row in rows if row not in others] + others[::11][:13])


@dataclass
class Installation:
    """A running installation and an HTTP client for it."""

    stack: Stack

    @property
    def connection(self) -> Connection:
        return self.stack.connection

    def call(self, method: str, path: str, **request: Any) -> Any:
        """A native API call that must succeed."""
        with self.connection.client() as client:
            response = client.request(method, path, **request)
        assert not response.is_error, response.text
        return response.json()

    def openai(self) -> OpenAI:
        """A stock OpenAI client that refuses any answer whose shape is not OpenAI's."""
        return OpenAI(
            base_url=f"{self.connection.url}/v1",
            api_key=self.connection.key,
            max_retries=0,
            _strict_response_validation=True,
        )

    def upload(self, name: str = "support.jsonl") -> str:
        """Id of an uploaded example file."""
        return self.upload_bytes(name, (ROOT / "examples" / name).read_bytes())

    def upload_bytes(self, name: str, content: bytes) -> str:
        """Id of an uploaded file."""
        answer = self.call("POST", "/v1/files", data={"purpose": "fine-tune"}, files={"file": (name, content)})
        return str(answer["id"])

    def train(
        self,
        *,
        name: str = "support",
        base: str = BASE,
        publish: bool = True,
        alias: str | None = None,
        quant: str | None = None,
        **exec_: Any,
    ) -> str:
        """Id of a created job that learns the answer in 60 steps, five an epoch.

        Args:
            quant: how the base is held: ``nf4`` or ``none``; None: as the plan decides.
        """
        settings = {"epochs": 12, "batch_size": 4, "grad_accum": 1, "learning_rate": 4e-3, "seq_len": 128}
        contract = {
            "model": {"hf_repo": base},
            "data": {"train_file": self.upload_bytes("lesson.jsonl", short_lesson())},
            "exec": settings | {"checkpoint_every": 20} | exec_,
            "artifact": {"publish": publish, "alias": alias},
            "quant": {"base": quant} if quant else {},
        }
        return str(self.call("POST", "/v1/jobs", json={"contract": contract, "name": name, "kind": "finetune"})["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.call("GET", f"/v1/jobs/{job_id}", params={"after": "0"}))

    def wait(
        self, job_id: str, until: Callable[[dict[str, Any]], bool], seconds: float = SECONDS, *, every: float = 0.3
    ) -> dict[str, Any]:
        """The job with its events, once it is as wanted. Outages of the API are waited out.

        Args:
            until: whether it is, by all but the events: with them each look would cost the API several times as much.
            every: seconds between two looks.
        """
        deadline = time.monotonic() + seconds
        job: dict[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                job = self.call("GET", f"/v1/jobs/{job_id}")
                if until(job):
                    return self.job(job_id)
            except OSError:
                pass
            except Exception as error:
                if type(error).__module__.partition(".")[0] != "httpx":
                    raise
            time.sleep(every)
        state = {key: job.get(key) for key in ("state", "stage", "progress", "error")}
        messages = "\n".join(event["message"] for event in self.job(job_id)["events"])
        raise AssertionError(f"{job_id} did not get there in {seconds} s: {state}\n{messages}")

    def wait_for_step(self, job_id: str, step: int) -> dict[str, Any]:
        def is_there(job: dict[str, Any]) -> bool:
            return job["progress"].get("step", 0) >= step or job["state"] == "failed"

        return self.wait(job_id, is_there, every=0.1)

    def wait_for_success(self, job_id: str) -> dict[str, Any]:
        job = self.wait(job_id, lambda job: job["state"] in ("succeeded", "failed", "cancelled"))
        assert job["state"] == "succeeded", (job["error"], [event["message"] for event in job["events"]])
        return job

    def trainers(self) -> list[psutil.Process]:
        """The worker's trainers that run now."""
        worker, found = psutil.Process(self.stack.pid("worker")), []
        for child in worker.children():
            with suppress(psutil.NoSuchProcess):  # one that has ended has no command line
                found += [child] if "worker.train" in child.cmdline() else []
        return found

    def resumptions(self, job_id: str) -> int:
        """How many attempts at a job have gone on from a checkpoint."""
        return sum("resumed from the checkpoint" in event["message"] for event in self.job(job_id)["events"])

    def ask(self, model: str, question: str = QUESTION) -> str:
        """A model's greedy answer."""
        body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0}
        answer = self.call("POST", "/v1/chat/completions", json=body | {"max_tokens": 48})
        return str(answer["choices"][0]["message"]["content"])

    def engine(self, name: str) -> float:
        """A metric of vLLM in the replica, summed over its labels."""
        settings = self.stack.settings
        headers = {"Authorization": f"Bearer {settings['MENS_METRICS_KEY']}"}
        text = httpx.get(f"{settings['MENS_SERVING_URLS']}/metrics", headers=headers, timeout=30).text
        return sum(map(float, re.findall(rf"^vllm:{name}\{{.*\}} ([\d.e+]+)", text, re.MULTILINE)))

    def adapters_of(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """Results that were registered for a job; a job has exactly one."""
        return [
            a for a in self.call("GET", "/v1/adapters?limit=100")["data"] if a["job_id"] == job["id"] and a["final"]
        ]

    def assert_one_result(self, job: dict[str, Any]) -> None:
        """A job that has succeeded did so once, and its one adapter answers as it was taught."""
        (adapter,) = self.adapters_of(job)
        assert adapter["id"] == job["result"]["adapter_id"]
        assert ANSWER in self.ask(adapter["id"])
        assert len([event for event in job["events"] if event["message"].startswith("Job succeeded")]) == 1
