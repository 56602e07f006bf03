"""Each level reports what it needs and the machine lacks; if no level is left, code is refused."""

from __future__ import annotations

import pytest

from shared.errors import Code, InvalidRequest
from shared.sandbox import bubblewrap, landlock, seccomp
from shared.sandbox import probe as probing
from shared.sandbox.client import Sandbox
from shared.sandbox.levels import LEVELS
from shared.sandbox.probe import missing, probe
from tests.support.sandboxes import level_parameters

pytestmark = pytest.mark.sandbox


def refusal(report: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        Sandbox.open(report)  # type: ignore[arg-type]
    return refused.value


def test_a_kernel_without_landlock_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi_version", lambda: 0)
    report = probe()
    assert (report.level, set(report.reasons)) == (None, set(LEVELS))
    assert refusal(report).code == Code.SANDBOX_UNAVAILABLE
    assert "the kernel does not support Landlock" in refusal(report).message


def test_a_machine_without_libseccomp_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise OSError("libseccomp.so.2: cannot open shared object file")

    monkeypatch.setattr(seccomp, "load_library", absent)
    report = probe()
    assert report.level is None
    assert "apt-get install libseccomp2" in report.statement


def test_another_system_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing.platform, "machine", lambda: "riscv64")
    report = probe()
    assert report.level is None
    assert "x86_64 or aarch64" in report.statement


@pytest.mark.skipif(bool(missing("landlock")), reason=missing("landlock"))
def test_without_bubblewrap_the_next_level_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "is_installed", lambda: False)
    report = probe()
    assert report.level == "landlock"
    assert report.reasons == {"bubblewrap": "bubblewrap is not installed (apt-get install bubblewrap)"}
    assert report.statement.startswith("landlock: ")


@pytest.mark.parametrize("level", level_parameters()[:1])
def test_the_strongest_level_is_taken_and_a_chosen_one_alone(level: str) -> None:
    assert probe().level == level
    chosen = probe("landlock")
    assert (chosen.level, chosen.reasons) == ("landlock", {})
    off = probe("off")
    assert (off.level, off.statement) == (None, "none: off: MENS_SANDBOX is off")
