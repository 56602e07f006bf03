"""An installation's home folder on this machine: who has it, its secrets, and its owner's key for the front door."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import Unauthenticated
from shared.settings import Settings
from shared.tenancy import SHARED

if TYPE_CHECKING:
    from shared.db import Database
    from shared.keys import Keys

OWN_KEY = "mens-up"
"""Name of the owner's key; further ones get a number."""
LOCK_SECONDS = 15.0
LOCK_POLL_SECONDS = 0.5


def lock_home(home: Path) -> int:
    """Make the folder where it is missing and lock it: two stacks would fight over it.

    What a killed one has left needs a few seconds to end and is waited for; one whose owner lives is not.

    Returns:
        A descriptor; the lock holds as long as a process has it open.

    Raises:
        BlockingIOError: another stack has the folder.
    """
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)  # training data, keys and answers are their owner's business
    lock = os.open(home / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while not _try_lock(lock):
        if time.monotonic() > deadline or _owner_lives(lock):
            os.close(lock)
            raise BlockingIOError
        time.sleep(LOCK_POLL_SECONDS)
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def secret(home: Path, name: str) -> str:
    """The secret in a file of the folder, made when it is first asked for."""
    path = home / name
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32))
    return path.read_text()


def api_key(home: Path) -> str:
    """The owner's key for the front door; where its file is lost or the database does not know it, another one."""
    from shared.db import Database
    from shared.keys import Keys

    database = Database(Settings(home=home).database_url)
    keys, path = Keys(database), home / "api-key"
    if not path.exists() or not _is_known(keys, path.read_text()):
        write_private(path, keys.create(_unused_name(keys))[1])
    database.close()
    return path.read_text()


def installed_database(settings: Settings) -> Database | None:
    """The database of the installation on this machine; None where there is none, or only the command line is installed."""
    try:
        from shared.db import Database  # slow to import
    except ModuleNotFoundError:
        return None
    database = Database(settings.database_url)
    return database if database.is_there else None


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text)


def _is_known(keys: Keys, key: str) -> bool:
    try:
        keys.authenticate(key)
    except Unauthenticated:
        return False
    return True


def _unused_name(keys: Keys) -> str:
    """:data:`OWN_KEY`, or with a number: where the secret's file was lost, its key may still be in use somewhere."""
    taken = {key.name for key in keys.all(SHARED) if key.revoked_at is None}
    return next(name for name in (OWN_KEY, *(f"{OWN_KEY}-{n}" for n in range(2, len(taken) + 3))) if name not in taken)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner_lives(lock: int) -> bool:
    """Whether the process that wrote its pid into the lock file still runs; its supervisord may outlive it a little."""
    pid = os.pread(lock, 32, 0)
    return pid.isdigit() and Path("/proc", pid.decode()).exists()
