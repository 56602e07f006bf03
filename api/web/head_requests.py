"""HEAD requests: they are answered like GET, without the body."""

from __future__ import annotations

from starlette.types import Message, Receive, Send


def without_body(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Return the functions for answering a GET with only the head. An endless body ends too, because the client counts
    as disconnected once the head is sent.
    """
    is_sent = False

    async def send_head(message: Message) -> None:
        nonlocal is_sent
        if message["type"] == "http.response.start":
            await send(message)
        elif not is_sent:
            is_sent = True
            await send({"type": "http.response.body", "body": b""})

    async def receive_until_sent() -> Message:
        return {"type": "http.disconnect"} if is_sent else await receive()

    return receive_until_sent, send_head
