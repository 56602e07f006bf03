"""Actors of changes: a request's key or person, an attempt's job, a command on the database's machine, or a process itself."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple

from shared.observability.log_context import current_ids

MAX_ACTOR = 320
"""Largest number of characters of an actor in the audit log."""
ActorKind = Literal["key", "person", "job", "command", "process"]


class AuditActor(NamedTuple):
    """The author of a change.

    Attributes:
        id: id of the key or the job; empty for others.
        name: the key's name, a person's name and subject, the job's id, a command's ``user@host``, a process's ``host:pid``.
        address: client address of a request; the proxy's address if a proxy is in between.
        key_name: name of the request's key, for a person that of the person's key; None: the actor is not a request.
    """

    kind: ActorKind
    id: str
    name: str
    address: str | None = None
    key_name: str | None = None

    @classmethod
    def of_key(cls, key_id: str, name: str, subject: str | None, address: str) -> AuditActor:
        """Return the actor of a request with a key; one with a subject stands for a person of the identity provider."""
        if subject is None:
            return cls("key", key_id, name, address, name)
        return cls("person", key_id, f"{name} ({subject})"[:MAX_ACTOR], address, name)

    @classmethod
    def of_command(cls) -> AuditActor:
        """Return the user who runs this command on the database's machine, where no key is needed."""
        return cls("command", "", f"{_user()}@{socket.gethostname()}")


_actor: ContextVar[AuditActor | None] = ContextVar("audit_actor", default=None)


def act_as(actor: AuditActor) -> None:
    """Set the actor of changes from now on, in this task and the threads that it starts."""
    _actor.set(actor)


@contextmanager
def acting(actor: AuditActor) -> Iterator[None]:
    """Set the actor of changes inside the block."""
    token = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(token)


def current_actor() -> AuditActor:
    """Return the current actor: the one that was set, else the job of the attempt that runs here, else the process."""
    if (actor := _actor.get()) is not None:
        return actor
    if job_id := current_ids().get("job_id"):
        return AuditActor("job", job_id, job_id)
    return AuditActor("process", "", f"{socket.gethostname()}:{os.getpid()}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"
