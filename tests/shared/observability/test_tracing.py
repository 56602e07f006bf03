"""Traces: no exporter is imported while they are off, and a clear message if it is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shared.errors import Code, InvalidRequest
from shared.observability import tracing

ROOT = Path(__file__).parents[3]


def test_processes_without_traces_import_nothing_that_sends_them(tmp_path: Path) -> None:
    code = (
        "import sys, api.__main__, api.main, worker.app, worker.child_runtime; from api.settings import ApiSettings;"
        f"from fastapi.testclient import TestClient; app = api.main.create_app(ApiSettings(home={str(tmp_path)!r}));"
        "client = TestClient(app); assert client.get('/health').status_code == 200;"
        "from shared.observability import tracing; assert tracing.current_traceparent() is None;"
        # redis-py imports the SDK's metrics by itself where they are installed.
        "assert not [n for n in sys.modules if n.startswith(('opentelemetry.sdk.trace', 'opentelemetry.exporter'))]"
    )
    environment = {"PYTHONPATH": str(ROOT), "MENS_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def test_while_they_are_off_everything_is_a_no_op() -> None:
    tracing.start_tracing("", "mens-api")
    assert not tracing.is_tracing()
    with tracing.span("anything"):
        assert tracing.current_traceparent() is None
    assert tracing.begin_span("x") is None
    assert tracing.enter_span(None) is None
    tracing.leave_span(None, None)
    assert tracing.to_environment() == {}


def test_without_opentelemetry_the_setting_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InvalidRequest, match=r"mens\[tracing\]") as refused:
        tracing.start_tracing("http://127.0.0.1:9", "mens-api")
    assert (refused.value.code, refused.value.param) == (Code.SETTINGS_INVALID, "MENS_OTLP_ENDPOINT")
