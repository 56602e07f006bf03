"""Variants of ``python -m bench.poll``: an API with a running job, the concurrent load, and a route that returns a
constant.

python -m bench.serving.poll_variants PORT    the constant
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.bases import TINY, add_base
from bench.harness.loopback import free_port, server

START_SECONDS = 30.0
PIECE = (json.dumps({"prompt": "What is Mens?" * 20, "response": "A fine-tuning service. " * 40}) + "\n").encode() * 900


@dataclass(frozen=True)
class PolledInstallation:
    """A served API.

    Attributes:
        url: URL of the API.
        job_path: path of a running job.
        poll_headers: headers of a poll that finds the job unchanged.
        contract: contract that a plan validates.
    """

    url: str
    job_path: str
    poll_headers: dict[str, str]
    contract: dict[str, Any]

    def upload_and_validate(self, size: int) -> int:
        """Upload a file of `size` bytes, and meanwhile repeatedly plan a job, which validates its training file.

        Returns:
            the number of plans.
        """
        import httpx

        headers = {"authorization": self.poll_headers["authorization"]}
        pieces = itertools.islice(itertools.repeat(PIECE), max(size // len(PIECE), 1))
        has_ended, plans = threading.Event(), 0
        with httpx.Client(base_url=self.url, headers=headers, timeout=600, trust_env=False) as client:

            def upload() -> None:
                try:
                    client.post(
                        "/v1/files",
                        content=_multipart(pieces),
                        headers={"content-type": "multipart/form-data; boundary=bench"},
                    ).raise_for_status()
                finally:
                    has_ended.set()

            uploading = threading.Thread(target=upload)
            uploading.start()
            while not has_ended.is_set() or not plans:
                client.post("/v1/plans", json={"contract": self.contract}).raise_for_status()
                plans += 1
            uploading.join()
        return plans


def _multipart(pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield b'--bench\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
    yield b'--bench\r\ncontent-disposition: form-data; name="file"; filename="large.jsonl"\r\n\r\n'
    yield from pieces
    yield b"\r\n--bench--\r\n"


@contextmanager
def busy_installation(home: Path, rows: int, *, smoke: bool) -> Iterator[PolledInstallation]:
    """Run an API around the tiny base, with a running job and a training file of `rows` rows."""
    import httpx

    from api.migrate import migrate
    from shared.database.callers.keys import Keys
    from shared.database.connection import Database
    from shared.database.jobs import Jobs
    from shared.database.leases import Leases
    from shared.database.records import Kind, NewEvent, Submission
    from shared.settings import Settings

    settings = Settings(home=home)
    add_base(settings, TINY, smoke=smoke)
    migrate(settings.database_url)
    database = Database(settings.database_url)
    job, _ = Jobs(database).submit(Submission(kind=Kind.FINETUNE, base_model=TINY, name="helper", contract={}, plan={}))
    leases = Leases(database, 86_400)
    lease = leases.claim(job.id, "bench")
    assert lease
    leases.report(lease, events=[NewEvent(message="Step 7 of 10.")], progress={"step": 7, "steps": 10})
    authorization = {"authorization": f"Bearer {Keys(database).create('bench')[1]}"}
    database.close()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        "MENS_HOME": str(home),
        "MENS_API_PORT": str(port),
        "MENS_MAX_FILE_BYTES": str(8 << 30),
        "MENS_TENANT_PLANS_PER_MINUTE": "100000",
    }
    with (
        server(["-m", "api"], f"{url}/ready", START_SECONDS, environment),
        httpx.Client(base_url=url, headers=authorization, timeout=60, trust_env=False) as client,
    ):
        content = b"".join(
            json.dumps({"prompt": f"What is {n}?", "response": f"It is the number {n}."}).encode() + b"\n"
            for n in range(rows)
        )
        file = client.post("/v1/files", data={"purpose": "fine-tune"}, files={"file": ("rows.jsonl", content)}).json()
        contract = {"model": {"hf_repo": TINY}, "data": {"train_file": file["id"]}, "artifact": {"publish": False}}
        path = f"/v1/jobs/{job.id}"
        etag = client.get(path).headers["etag"]
        yield PolledInstallation(url, path, authorization | {"if-none-match": etag}, contract)


@contextmanager
def constant_server() -> Iterator[str]:
    """Yield the URL of a FastAPI application whose route ``/constant`` returns a constant."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with server(["-m", "bench.serving.poll_variants", str(port)], f"{url}/constant", START_SECONDS, {}):
        yield url


def main() -> None:
    """Entry point: the constant."""
    import uvicorn
    from fastapi import FastAPI

    app = FastAPI()

    @app.get("/constant")
    async def constant() -> dict[str, str]:
        return {"state": "running"}

    uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)


if __name__ == "__main__":
    main()
