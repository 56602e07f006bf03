"""Installations for trials, each on its own disk, so that the disk can be filled."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from unittest.mock import patch

from cli.commands.bases.tiny import build
from cli.standalone.stack import Stack, running_stack
from shared.settings import Settings
from tests.support.postgres import start_postgres
from tests.support.s3_server import start_s3_server
from tests.system.fault_trials.faults import movable_clock, small_disk
from tests.system.fault_trials.trials import Layout, Site
from tests.system.loop import BASE, IMPATIENCE, Installation

HOME_BYTES = 1 << 30


@contextmanager
def one_machine(home: Path, environment: Mapping[str, str] = MappingProxyType({})) -> Iterator[Site]:
    """All on one machine and its disk."""
    with small_disk(home, HOME_BYTES):
        build(Settings(home=home), BASE)
        with running_stack(Stack(home, BASE, environment=IMPATIENCE | environment)) as stack:
            yield Site(Installation(stack), home)


@contextmanager
def with_clock(home: Path) -> Iterator[Site]:
    """All on one machine whose clock can be moved."""
    with tempfile.TemporaryDirectory() as folder:
        clock = Path(folder) / "clock"
        with one_machine(home, movable_clock(clock)) as site:
            site.clock = clock
            yield site


@contextmanager
def servers(home: Path) -> Iterator[Site]:
    """With PostgreSQL and a bucket."""
    with ExitStack() as stack:
        postgres, s3 = start_postgres(), start_s3_server()
        stack.callback(postgres.stop)
        stack.callback(s3.stop)
        environment = {"MENS_DATABASE_URL": postgres.fresh_url()} | s3.environment("trials")
        # What prepares the home folder reads them here, the programs inherit them.
        stack.enter_context(patch.dict(os.environ, environment))
        site = stack.enter_context(one_machine(home))
        site.postgres, site.database_url, site.s3 = postgres, environment["MENS_DATABASE_URL"], s3
        yield site


SITES = {"one-machine": one_machine, "clock": with_clock, "servers": servers}


@contextmanager
def running_site(layout: Layout) -> Iterator[Site]:
    """An installation, running in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="mens-trials-") as home, SITES[layout](Path(home)) as site:
        yield site
