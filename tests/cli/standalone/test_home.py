"""The home folder: its lock, private files, and the owner's key."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from api.migrate import migrate
from cli.client.connection import Connection
from cli.standalone.home import api_key, lock_home, write_private
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.errors import Code, InvalidRequest
from shared.settings import Settings


def test_lost_key_file_gets_a_new_key_and_revokes_none(tmp_path: Path) -> None:
    migrate(Settings(home=tmp_path).database_url)
    secrets = [api_key(tmp_path), api_key(tmp_path)]
    for _ in range(2):
        (tmp_path / "api-key").unlink()
        secrets.append(api_key(tmp_path))
    keys = Keys(Database(Settings(home=tmp_path).database_url))
    assert [keys.authenticate(secret).name for secret in secrets] == ["mens-up", "mens-up", "mens-up-2", "mens-up-3"]


def test_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    Connection("http://127.0.0.1:1", "key").save(tmp_path)
    for private in (path, tmp_path / "connection.json"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nope"])
def test_home_that_cannot_be_a_folder_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest) as caught:
        lock_home(tmp_path / place)
    assert (caught.value.code, caught.value.param) == (Code.SETTINGS_INVALID, "MENS_HOME")
    assert f"MENS_HOME is {tmp_path / place}, " in caught.value.message


def test_lock_waits_for_stack_that_is_ending(tmp_path: Path) -> None:
    first = lock_home(tmp_path)
    (tmp_path / "lock").write_text("999999999")  # the pid of one that is gone
    timer = threading.Timer(0.7, os.close, [first])
    timer.start()
    os.close(lock_home(tmp_path))
    timer.join()
