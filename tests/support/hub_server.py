"""A hub on loopback, with the requests by which its own client creates a repository, commits to it, resolves a revision
and downloads it.

It handles the requests of `huggingface_hub`: ``create``, ``validate-yaml``, ``preupload``, the LFS batch with upload
and verification, and the commit, with one line of JSON per operation. Large files are committed by digest; a commit
that names a file that was not uploaded is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import yaml

TOKEN = "hf_loopback"


@dataclass
class Hub:
    """Content of the hub.

    Attributes:
        repositories: files by name, by repository.
        large: uploaded objects by digest.
        commits: summary and number of operations of each commit, in order.
        agents: ``User-Agent`` of the commits.
        refs: commit by branch or tag, by repository.
        gated: repositories that ``TOKEN`` may not read.
    """

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    large: dict[str, bytes] = field(default_factory=dict)
    commits: list[tuple[str, int]] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)
    refs: dict[str, dict[str, str]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)

    def read(self, parts: list[str]) -> tuple[int, Any, dict[str, str]]:
        """Return status, content and headers for a GET or HEAD of a repository."""
        match parts:
            case ["api", "models", owner, name, *more]:
                revision = more[1] if len(more) > 1 else "main"
            case [owner, name, "resolve", revision, _]:
                pass
            case _:
                return 404, {"error": "no such route"}, {}
        repository = f"{owner}/{name}"
        if repository not in self.repositories:
            return 404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}
        if repository in self.gated:
            return 403, {"error": "Access is restricted"}, {"X-Error-Code": "GatedRepo"}
        refs = self.refs[repository]
        commit = refs.get(revision) or (revision if revision in refs.values() else None)
        if commit is None:
            return 404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"}
        files = self.repositories[repository]
        if parts[0] == "api":
            listed = [
                {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for path, content in files.items()
            ]
            facts = {"id": repository, "sha": commit, "siblings": [{"rfilename": path} for path in files]}
            return 200, listed if "tree" in parts else facts, {}
        content = files.get(parts[-1])
        if content is None:
            return 404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"}
        return 200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit}

    def answer(self, method: str, path: str, body: bytes, agent: str) -> tuple[int, Any]:
        """Return status and content: an object is sent as JSON, bytes as a file."""
        parts = path.strip("/").split("/")
        match method, parts:
            case "POST", ["api", "repos", "create"]:
                return self._create(json.loads(body))
            case "POST", ["api", "validate-yaml"]:
                front = yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
                return 200 if isinstance(front, dict) else 400, {"errors": [], "warnings": []}
            case "POST", ["api", "models", owner, name, "preupload", "main"]:
                return self._preupload(f"{owner}/{name}", json.loads(body))
            case "POST", [_, _, "info", "lfs", "objects", "batch"]:
                return 200, {"transfer": "basic", "objects": [self._upload(one) for one in json.loads(body)["objects"]]}
            case "PUT", ["objects", digest]:
                self.large[digest] = body
                return 200 if hashlib.sha256(body).hexdigest() == digest else 400, {}
            case "POST", ["verify"]:
                asked = json.loads(body)
                return (200 if len(self.large.get(asked["oid"], b"")) == asked["size"] else 422), {}
            case "POST", ["api", "models", owner, name, "commit", "main"]:
                self.agents.append(agent)
                return self._commit(f"{owner}/{name}", [json.loads(line) for line in body.splitlines()])
        return 404, {"error": f"{method} {path}"}

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.repositories:
            return 409, {"error": "You already created this model repo", "url": f"{self.url}/{name}"}
        self.repositories[name] = {}
        self.private |= {name} if asked.get("visibility") == "private" else set()
        return 200, {"url": f"{self.url}/{name}", "name": name, "id": "0"}

    def _preupload(self, repository: str, asked: dict[str, Any]) -> tuple[int, Any]:
        if repository not in self.repositories:
            return 404, {"error": "Repository not found"}
        modes = {True: "lfs", False: "regular"}
        return 200, {
            "files": [
                {"path": one["path"], "uploadMode": modes[one["path"].endswith(".safetensors")], "shouldIgnore": False}
                for one in asked["files"]
            ]
        }

    def _upload(self, asked: dict[str, Any]) -> dict[str, Any]:
        actions = {"upload": {"href": f"{self.url}/objects/{asked['oid']}"}, "verify": {"href": f"{self.url}/verify"}}
        return asked | {"actions": actions}

    def _commit(self, repository: str, operations: list[dict[str, Any]]) -> tuple[int, Any]:
        header, *changes = operations
        files = dict(self.repositories[repository])
        for change in changes:
            value = change["value"]
            if change["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif value["oid"] in self.large:
                files[value["path"]] = self.large[value["oid"]]
            else:
                return 422, {"error": f"{value['oid']} was not uploaded"}
        self.repositories[repository] = files
        self.commits.append((header["value"]["summary"], len(changes)))
        oid = hashlib.sha1(json.dumps(operations).encode()).hexdigest()
        return 200, {"commitUrl": f"{self.url}/{repository}/commit/{oid}", "commitOid": oid, "success": True}


@contextmanager
def hub_server() -> Iterator[Hub]:
    """A hub that runs until the block ends; requests without ``TOKEN`` are refused."""
    hub = Hub()

    class HubHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            body = self._body()
            headers: dict[str, str] = {}
            needs_token = not self.path.startswith("/objects/")
            if needs_token and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status, value = 401, {"error": "Invalid credentials"}
            elif self.command in ("GET", "HEAD"):
                status, value, headers = hub.read(urlsplit(self.path).path.strip("/").split("/"))
            else:
                status, value = hub.answer(
                    self.command, urlsplit(self.path).path, body, self.headers.get("User-Agent", "")
                )
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            for name, text in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, text)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        do_GET = do_HEAD = do_POST = do_PUT = _respond

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), HubHandler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield hub
        finally:
            server.shutdown()
