"""A real API on a real socket, and ``mens`` as its users run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from api.main import create_app
from api.services import Services
from api.settings import ApiSettings
from cli.main import app
from shared.keys import Key
from shared.lease import LeaseLedger
from shared.registry import NewAdapter
from shared.tenancy import SHARED, Role
from tests.api.test_gateway import serve
from tests.shared.samples import claimed

Command = Callable[..., str]


@dataclass(frozen=True)
class Installation:
    """An API that answers on ``url``, and the key of an admin of `shared` that commands carry."""

    services: Services
    url: str
    key: Key
    patch: pytest.MonkeyPatch

    def invoke(self, *arguments: str, code: int = 0) -> Result:
        """Run ``mens``, which must end with an exit code."""
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result

    def mens(self, *arguments: str, code: int = 0) -> str:
        """Run ``mens``; what it says on stdout and stderr."""
        return self.invoke(*arguments, code=code).output.strip()

    def become(self, name: str, tenant: str = SHARED, role: Role = Role.ADMIN) -> Key:
        """From now on commands carry another, new key."""
        key, secret = self.services.keys.create(name, tenant, role)
        self.patch.setenv("MENS_API_KEY", secret)
        return key

    def register(self, *adapters: NewAdapter) -> None:
        """Adapters of `shared`, as a job that succeeded leaves them."""
        leases = LeaseLedger(self.services.database, 60)
        leases.finish(claimed(self.services.ledger, leases), {}, adapters=list(adapters))


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> Iterator[Installation]:
    """An installation without a base, replica or broker; commands are alice's."""
    (tmp_path / "mens.db").write_bytes(sqlite_template.read_bytes())
    api = create_app(ApiSettings(home=tmp_path, broker_url="redis://127.0.0.1:9/0"))
    key, secret = api.state.services.keys.create("alice")
    monkeypatch.delenv("MENS_TENANT", raising=False)
    for url in serve(api):
        monkeypatch.setenv("MENS_HOME", str(tmp_path))
        monkeypatch.setenv("MENS_API_URL", url)
        monkeypatch.setenv("MENS_API_KEY", secret)
        yield Installation(api.state.services, url, key, monkeypatch)
