"""A receiver of webhooks on loopback whose responses a test chooses; and the outbox from which it is filled."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """The received requests, and the next responses: each is used once, and the last one is repeated."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def ids(self) -> list[str]:
        """Ids of the received webhooks."""
        return [each.headers["webhook-id"] for each in self.received]


def status(code: int, body: bytes = b"", **headers: str) -> Answer:
    """Respond with a status."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def drip(seconds: float) -> Answer:
    """Send one byte of a response head at intervals, without ever completing it, so that no timeout between two bytes
    is reached.
    """

    def answer(request: BaseHTTPRequestHandler) -> None:
        until = time.monotonic() + seconds
        request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while time.monotonic() < until:
            request.wfile.write(b"x")
            request.wfile.flush()
            time.sleep(0.02)

    return answer


@contextmanager
def webhook_receiver(*answers: Answer, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """A receiver that runs until the block ends; with ``tls``, over HTTPS."""
    receiver = Receiver(answers=list(answers) or [status(204)])
    lock = threading.Lock()

    class HookHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.append(Received(self.path, headers, body))
                answer = receiver.answers.pop(0) if len(receiver.answers) > 1 else receiver.answers[0]
            try:
                answer(self)
            except OSError:
                self.close_connection = True

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    class HookServer(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    with HookServer(("127.0.0.1", 0), HookHandler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        receiver.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}/hook"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield receiver
        finally:
            receiver.released.set()
            server.shutdown()


def hang(receiver: Receiver) -> Answer:
    """Send no response until the receiver is released."""

    def answer(_: BaseHTTPRequestHandler) -> None:
        receiver.released.wait(30)

    return answer
