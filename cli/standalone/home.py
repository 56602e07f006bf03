"""The home folder of an installation on this machine: its lock, its secrets, and its owner's API key."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shared.database.tenancy import SHARED
from shared.errors import Code, InvalidRequest, Unauthenticated
from shared.settings import Settings

if TYPE_CHECKING:
    from shared.database.callers.keys import Keys
    from shared.database.connection import Database

OWN_KEY = "mens-up"
"""Name of the owner's API key; further ones get a number."""
LOCK_SECONDS = 15.0
LOCK_POLL_SECONDS = 0.5


def lock_home(home: Path) -> int:
    """Create the folder if it is missing, and lock it, so that two stacks never use the same one.

    Returns:
        A descriptor; the lock holds as long as a process has it open.

    Raises:
        BlockingIOError: another stack has the folder.
        InvalidRequest: ``SETTINGS_INVALID``: the folder cannot be created, or belongs to another user.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        # Training data, keys and answers: readable by their owner only.
        home.chmod(0o700)
        lock = os.open(home / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise InvalidRequest(
            Code.SETTINGS_INVALID,
            f"MENS_HOME is {home}, which cannot be a folder of this installation: {error.strerror}.",
            remedy="Set MENS_HOME to a folder that you own, or to a path where you may create one.",
            param="MENS_HOME",
        ) from error
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            # After a stack was killed, its programs hold the lock for some more seconds. But if the process of the
            # stack, whose pid is in the file, still lives, its programs do not end on their own.
            pid = os.pread(lock, 32, 0)
            owner_lives = pid.isdigit() and Path("/proc", pid.decode()).exists()
            if owner_lives or time.monotonic() > deadline:
                os.close(lock)
                raise
        time.sleep(LOCK_POLL_SECONDS)
    # Only now: until here the file had the pid of the stack that held the lock.
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def secret(home: Path, name: str) -> str:
    """Return the secret in a file of the folder; it is created at its first use."""
    path = home / name
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32))
    return path.read_text()


def api_key(home: Path) -> str:
    """Return the owner's API key; a new one if its file is lost or the database does not know it."""
    from shared.database.audit.actors import AuditActor, acting
    from shared.database.callers.keys import Keys
    from shared.database.connection import Database

    database = Database(Settings(home=home).database_url)
    keys, path = Keys(database), home / "api-key"
    if not path.exists() or not _is_known(keys, path.read_text()):
        # A key whose file is lost may still be used somewhere: it stays valid, and the new one gets the next free name.
        taken = {key.name for key in keys.all(SHARED) if key.revoked_at is None}
        names = (OWN_KEY, *(f"{OWN_KEY}-{n}" for n in range(2, len(taken) + 3)))
        with acting(AuditActor.of_command()):
            write_private(path, keys.create(next(name for name in names if name not in taken))[1])
    database.close()
    return path.read_text()


def installed_database(settings: Settings) -> Database | None:
    """Return the database of the installation on this machine; None without one, or if only the command line is
    installed.
    """
    try:
        from shared.database.connection import Database  # slow to import
    except ModuleNotFoundError:
        return None
    database = Database(settings.database_url)
    return database if database.exists else None


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
