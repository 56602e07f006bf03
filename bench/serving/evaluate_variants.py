"""One variant of ``python -m bench.evaluate`` in a separate process; prints seconds.

    python -m bench.serving.evaluate_variants evaluate JOB             a worker that executes a run, from claim to success
    python -m bench.serving.evaluate_variants client PLAN CONCURRENCY  the same requests and nothing else

Both call the API of ``MENS_API_URL``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

PATH = "/v1/chat/completions"


def evaluate(job_id: str) -> float:
    """Return the seconds of a worker's work on a job, without imports and set-up."""
    from shared.database.job_states import JobState
    from shared.database.jobs import Jobs
    from shared.queue import JobQueue, make_celery
    from shared.settings import read_settings
    from worker.jobs.runner import make_worker
    from worker.settings import WorkerSettings

    settings = read_settings(WorkerSettings)
    worker = make_worker(settings, JobQueue(make_celery(settings.broker_url)))
    started = time.perf_counter()
    worker.run_job(job_id)
    seconds = time.perf_counter() - started
    job = Jobs(worker.leases.database).get(job_id)
    if job.state is not JobState.SUCCEEDED:
        raise SystemExit(f"{job_id} is {job.state}: {job.error}")
    totals = job.result["totals"]
    if totals["passed"] != totals["done"]:
        raise SystemExit(f"{totals['passed']} of {totals['done']} items passed")
    return seconds


def client(bodies: list[bytes], concurrency: int) -> float:
    """Return the seconds that threads take to send bodies and to read each answer's content."""
    headers = {"Authorization": f"Bearer {os.environ['MENS_API_KEY']}", "Content-Type": "application/json"}
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    with httpx.Client(
        base_url=os.environ["MENS_API_URL"], headers=headers, limits=limits, timeout=60, trust_env=False
    ) as http:

        def ask(body: bytes) -> str:
            answer = http.post(PATH, content=body).raise_for_status()
            return str(json.loads(answer.content)["choices"][0]["message"]["content"])

        started = time.perf_counter()
        with ThreadPoolExecutor(concurrency) as pool:
            texts = list(pool.map(ask, bodies))
        seconds = time.perf_counter() - started
    if len(set(texts)) != len(bodies):
        raise SystemExit(f"{len(bodies)} requests got {len(set(texts))} different answers")
    return seconds


def main() -> None:
    """Entry point."""
    if sys.argv[1] == "evaluate":
        print(evaluate(sys.argv[2]))
    else:
        bodies = [json.dumps(body).encode() for body in json.loads(Path(sys.argv[2]).read_bytes())]
        print(client(bodies, int(sys.argv[3])))


if __name__ == "__main__":
    main()
