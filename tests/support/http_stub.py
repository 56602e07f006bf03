"""A small HTTP server whose responses a function computes from each request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Respond = Callable[[str, str, bytes, Message], tuple[int, object]]
"""Maps method, target, body and headers of a request to status and JSON body of the response."""


@contextmanager
def http_stub(respond: Respond) -> Iterator[str]:
    """The URL of a server that responds until the block ends."""

    class StubHandler(BaseHTTPRequestHandler):
        # A connection, and a thread for it, of each client and not of each request; a response in one packet, which nothing delays.
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, value = respond(self.command, self.path, body, self.headers)
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _respond

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), StubHandler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
