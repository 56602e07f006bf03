"""Fixtures for the tests of all tiers: one PostgreSQL server per session, and a migrated database of either kind per
test.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:  # imported late, so that one tier's tests run where only that tier is installed
    from shared.database.connection import Database
    from tests.support.postgres import PostgresServer
    from tests.support.s3_server import S3Server
    from tests.support.serving_installation import ServingInstallation


# The same examples every time; HYPOTHESIS_PROFILE=explore looks for new ones.
# Forty of them tell nearly what a hundred do, in half the time; a rule that is broken in rare cases alone says how many it needs.
settings.register_profile(
    "mens", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "mens"))


# What is imported and collected stays for good: looking through it for garbage would take a second, and later 0.1 s a time.
gc.disable()

FOLDER_MARKS = ("deploy", "system", "vllm")
"""Folders of this one whose tests all have the mark of the same name."""
LEFT_OUT = re.compile(r"not \((\w+(?: or \w+)*)\)")
"""The form of `-m` that names what is not to run."""
MODULE_MARKS = re.compile(r"^pytestmark = (?:\[[^\]]*\]|.*)", re.MULTILINE)


def pytest_configure(config: pytest.Config) -> None:
    """Hold the capability matrix to the tests that it names, print what fails at once and what was skipped at the end, end
    servers with their folder, and limit the time of long tests.
    """
    from tests.support.failures import Failures
    from tests.support.proofs import Proofs
    from tests.support.scheduling import SharedServers, TimeLimit
    from tests.support.skips import Skips

    config.pluginmanager.register(Proofs(), "proofs")
    config.pluginmanager.register(Skips(), "skips")
    config.pluginmanager.register(SharedServers(), "shared servers")
    config.pluginmanager.register(TimeLimit.from_environment(), "time limit")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config), "failures")
    # Now, because it is remembered: later, tests have put packages of their own on this process's path.
    from worker.training.lineage import environment_digest

    environment_digest()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the imports of excluded folders: vLLM, torch and OpenAI's client cost each process seconds."""
    left_out = LEFT_OUT.fullmatch(config.option.markexpr)
    if not left_out:
        return None
    return True if _common_marks(collection_path) & set(left_out[1].split(" or ")) else None


def _common_marks(path: Path) -> set[str]:
    """Marks of every test of a file or folder, as far as they can be seen without an import."""
    if folder := _marked_folder(path):
        return {folder}
    line = MODULE_MARKS.search(path.read_text()) if path.suffix == ".py" else None
    return set(re.findall(r"pytest\.mark\.(\w+)", line[0])) if line else set()


def _marked_folder(path: Path) -> str | None:
    root = Path(__file__).parent
    name = path.relative_to(root).parts[0] if root in path.parents else None
    return name if name in FOLDER_MARKS else None


def _leaves_torch_out(config: pytest.Config) -> bool:
    left_out = LEFT_OUT.fullmatch(config.option.markexpr)
    return left_out is not None and "torch" in left_out[1].split(" or ")


def pytest_collection_finish(session: pytest.Session) -> None:
    if _leaves_torch_out(session.config) and "torch" in sys.modules:
        raise pytest.UsageError("collecting these tests loads torch: name its place in tests/worker/conftest.py")
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by folder, and run the longest ones first when several processes share them.

    If a test has several values, those after the first one are long on PostgreSQL: `make test` runs all of them on SQLite.
    """
    on_postgresql = set()
    for item in items:
        if folder := _marked_folder(item.path):
            item.add_marker(folder)
        if (
            isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
            and "postgresql" in item.callspec.id.split("-")
        ):
            name = item.nodeid.partition("[")[0]
            if name in on_postgresql:
                item.add_marker("long")
            on_postgresql.add(name)
    if hasattr(config, "workerinput"):
        from tests.support.scheduling import rank

        items.sort(key=lambda item: rank(item.nodeid.partition("::")[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """In place of xdist's `loadfile`."""
    from tests.support.scheduling import ServerScheduling

    return ServerScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def torch_is_not_loaded(request: pytest.FixtureRequest) -> Iterator[None]:
    """In a run that leaves torch out, the first test that loads it all the same fails: it would cost each process seconds."""
    loaded_before = "torch" in sys.modules
    yield
    if _leaves_torch_out(request.config) and "torch" in sys.modules:
        assert loaded_before, "this test loads torch: mark it, or name its place in tests/worker/conftest.py"


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """A third of the time of tests that write to SQLite would be waiting for a flush that only a power cut makes matter.

    So would a tenth of a tiny training's, which flushes each checkpoint. Whether and when files are flushed, tests of `os.fsync` say.
    """
    with pytest.MonkeyPatch.context() as patch:
        # A closed descriptor is an error here too.
        patch.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)
        if find_spec("sqlalchemy"):  # else one tier's tests run where only that tier is installed
            patch.setattr("shared.database.connection.SQLITE_SYNCHRONOUS", "OFF")
        yield


@pytest.fixture(scope="session", autouse=True)
def statements_compiled_once() -> Iterator[None]:
    """Nearly each test has a database of its own: a fourth of the time would go into compiling the same statements again.

    SQLAlchemy looks them up by dialect, so all engines of a kind get one that has been connected once, as it learns from that.
    """
    if not find_spec("sqlalchemy"):
        yield
        return
    import sqlalchemy

    common: dict[str, sqlalchemy.Dialect] = {}
    compiled: dict[Any, Any] = {}

    def create_engine(url: str, **options: Any) -> sqlalchemy.Engine:
        engine = sqlalchemy.create_engine(url, **options, _initialize=False)
        if engine.name not in common:
            # As the other connections: the first database, even one in SQL_ASCII, reports its version as a string.
            if engine.name == "sqlite":  # one in memory has another pool
                in_memory = {name: value for name, value in options.items() if name != "pool_timeout"}
                first = sqlalchemy.create_engine("sqlite://", **in_memory)
            else:
                first = sqlalchemy.create_engine(url, **options)
            try:
                first.connect().close()
            except sqlalchemy.exc.OperationalError:  # a test without its server
                return sqlalchemy.create_engine(url, **options)
            first.dispose()
            common[engine.name] = first.dialect
        engine.dialect = common[engine.name]
        engine.update_execution_options(compiled_cache=compiled)
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shared.database.connection.create_engine", create_engine)
        yield


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once() -> Iterator[None]:
    """Each of httpx' clients would read the authorities' certificates again, 20 ms; here no client leaves the machine."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("httpx"):
            from httpx import create_ssl_context

            patch.setattr("httpx._transports.default.create_ssl_context", cache(create_ssl_context))
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Started when the first test asks for it."""
    from tests.support.postgres import start_postgres

    server = start_postgres()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Started when the first test asks for it."""
    from botocore.loaders import create_loader

    from tests.support.s3_server import start_s3_server

    server = start_s3_server()
    with pytest.MonkeyPatch.context() as patch:
        # Each session of boto3 would read what S3 is like from JSON again, 0.1 s.
        patch.setattr("botocore.session.create_loader", cache(create_loader))
        yield server
    server.stop()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file that the real migrations made; tests get copies."""
    from api.migrate import migrate

    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a new, migrated database: every test that asks for it runs on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        template: Path = request.getfixturevalue("sqlite_template")
        path = tmp_path / "mens.db"
        path.write_bytes(template.read_bytes())
        yield f"sqlite:///{path}"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.fresh_url()
        yield url
        server.give_back(url)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An open database of either kind, with the current schema."""
    from shared.database.connection import Database

    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of a real chat model, SmolLM2-135M-Instruct; a test copies it before it changes a file."""
    from tests.support.smollm2 import smollm2_folder

    return smollm2_folder()


@pytest.fixture(scope="session")
def serving_installation(tmp_path_factory: pytest.TempPathFactory) -> ServingInstallation:
    """An installation with one tiny base for serving, whose model and adapters compute: what vLLM's tests share."""
    from tests.support.serving_installation import make_serving_installation

    return make_serving_installation(tmp_path_factory.mktemp("serving"))
