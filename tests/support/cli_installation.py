"""A real API on a real socket, and ``mens`` run as its users run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner, Result

from api.services import Services
from cli.main import app
from shared.database.adapters import NewAdapter
from shared.database.callers.key_records import Key
from shared.database.leases import Leases
from shared.database.tenancy import SHARED, Role
from tests.support.builders import claimed

Command = Callable[..., str]


@dataclass(frozen=True)
class CliInstallation:
    """An API at ``url``, and the key of an admin of `shared` that commands use."""

    services: Services
    url: str
    key: Key
    patch: pytest.MonkeyPatch

    def invoke(self, *arguments: str, code: int = 0) -> Result:
        """Run ``mens``, which must end with this exit code."""
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result

    def mens(self, *arguments: str, code: int = 0) -> str:
        """Run ``mens``; returns its stdout and stderr."""
        return self.invoke(*arguments, code=code).output.strip()

    def become(self, name: str, tenant: str = SHARED, role: Role = Role.ADMIN) -> Key:
        """Let later commands use another, new key."""
        key, secret = self.services.keys.create(name, tenant, role)
        self.patch.setenv("MENS_API_KEY", secret)
        return key

    def register(self, *adapters: NewAdapter) -> None:
        """Adapters of `shared`, as a successful job leaves them."""
        leases = Leases(self.services.database, 60)
        leases.finish(claimed(self.services.jobs, leases), {}, adapters=list(adapters))
