"""A Kubernetes API server for tests: etcd and kube-apiserver on loopback, without nodes or controllers, removed at the
end.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from cli.standalone.ports import free_port
from tests.support.helm_chart import Document

START_SECONDS = 120
REQUEST_SECONDS = 60.0
MANAGER = "mens-tests"
POD_SECURITY = "restricted"
"""Name of the one PodSecurityPolicy."""


@dataclass
class ApiServer:
    """A running server. Every client is an administrator.

    Attributes:
        url: where it listens.
        kubeconfig: a file by which kubectl and helm reach it.
    """

    url: str
    folder: Path
    kubeconfig: Path
    client: httpx.Client
    processes: list[subprocess.Popen[bytes]]
    _paths: dict[tuple[str, str], tuple[str, bool]] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: Document | None = None, **more: Any) -> httpx.Response:
        """Send a request with a JSON body, or none."""
        return self.client.request(method, path, json=body, **more)

    def create(self, document: Document, namespace: str) -> httpx.Response:
        """Create an object as a controller does; unknown fields are dropped without a word."""
        return self.ask("POST", self.collection(document, namespace), document)

    def apply(self, document: Document, namespace: str, *, dry_run: bool = False) -> httpx.Response:
        """Server-side apply, which refuses unknown fields too."""
        query = {"fieldManager": MANAGER, "force": "true", **({"dryRun": "All"} if dry_run else {})}
        return self.client.patch(
            self.path(document, namespace),
            content=json.dumps(document),
            headers={"Content-Type": "application/apply-patch+yaml"},
            params=query,
        )

    def path(self, document: Document, namespace: str) -> str:
        """Where an object is."""
        return f"{self.collection(document, namespace)}/{document['metadata']['name']}"

    def collection(self, document: Document, namespace: str) -> str:
        """Where the objects of a document's kind are, by what the server says of the kind.

        Raises:
            LookupError: the server does not know the kind in that version.
        """
        version, kind = document["apiVersion"], document["kind"]
        if (version, kind) not in self._paths:
            group = f"/apis/{version}" if "/" in version else f"/api/{version}"
            found = self.ask("GET", group)
            kinds = found.json()["resources"] if found.is_success else []
            named = [each for each in kinds if each["kind"] == kind and "/" not in each["name"]]
            if not named:
                raise LookupError(f"the server does not know {version} {kind}")
            self._paths[version, kind] = f"{group}|{named[0]['name']}", named[0]["namespaced"]
        place, namespaced = self._paths[version, kind]
        group, plural = place.split("|")
        scope = f"/namespaces/{namespace}" if namespaced else ""
        return f"{group}{scope}/{plural}"

    def stop(self) -> None:
        """Kill both processes and remove their files. Twice is harmless."""
        for process in reversed(self.processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.client.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def start_api_server(program: Path) -> ApiServer:
    """Start the server with pod security and without anything in it; it answers when this returns.

    Args:
        program: kube-apiserver; etcd is in the same folder, or on PATH.
    """
    folder = Path(tempfile.mkdtemp(prefix="mens-kubernetes-"))
    etcd = shutil.which("etcd", path=f"{program.parent}:{os.environ.get('PATH', '')}")
    assert etcd, f"there is no etcd beside {program} or on PATH (Debian: etcd-server)"
    store, peers, port, token = free_port(), free_port(), free_port(), secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f'{token},tests,tests,"system:masters"\n')
    key = folder / "service-accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    url = f"https://127.0.0.1:{port}"
    commands = {
        "etcd": [
            etcd, f"--data-dir={folder}/etcd", f"--listen-client-urls=http://127.0.0.1:{store}",
            f"--advertise-client-urls=http://127.0.0.1:{store}", f"--listen-peer-urls=http://127.0.0.1:{peers}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peers}", f"--initial-cluster=default=http://127.0.0.1:{peers}",
        ],
        "kube-apiserver": [
            program, f"--etcd-servers=http://127.0.0.1:{store}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            f"--secure-port={port}", f"--cert-dir={folder}/certificates", "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC", f"--token-auth-file={folder}/tokens.csv",
            f"--service-account-issuer={url}", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", "--enable-admission-plugins=PodSecurityPolicy",
            # Beta, and on by default, from 1.21 on: volumes that a pod brings with it.
            "--feature-gates=GenericEphemeralVolume=true",
        ],
    }  # fmt: skip
    processes = []
    for name, command in commands.items():
        with (folder / f"{name}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, process_group=0))
    unverified = httpx.Client(verify=False)
    server = ApiServer(url, folder, folder / "kubeconfig", unverified, processes)
    atexit.register(server.stop)
    certificate = folder / "certificates" / "apiserver.crt"
    _wait_until(server, certificate.exists)
    unverified.close()
    server.client = httpx.Client(
        base_url=url,
        headers={"Authorization": f"Bearer {token}"},
        verify=ssl.create_default_context(cafile=str(certificate)),
        trust_env=False,
        timeout=REQUEST_SECONDS,
    )
    _wait_until(server, lambda: _is_ready(server))
    server.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(url, certificate, token)))
    server.kubeconfig.chmod(0o600)  # helm warns of one that others may read
    return server


def _kubeconfig(url: str, certificate: Path, token: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": {"server": url, "certificate-authority": str(certificate)}}],
        "users": [{"name": "tests", "user": {"token": token}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        "current-context": "tests",
    }


def _is_ready(server: ApiServer) -> bool:
    try:
        return server.client.get("/readyz").is_success
    except httpx.TransportError:
        return False


def _wait_until(server: ApiServer, condition: Any) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if any(process.poll() is not None for process in server.processes) or time.monotonic() > deadline:
            logs = {path.name: path.read_text(errors="replace")[-3000:] for path in server.folder.glob("*.log")}
            server.stop()
            raise RuntimeError(f"the API server did not start: {json.dumps(logs, indent=1)}")
        time.sleep(0.1)
