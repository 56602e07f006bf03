"""A compiler that its text has taken over is confined like graders, as root and as another user; without the sandbox,
the same attacks succeed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.compilers import probe
from shared.compilers.probe import attack_compiler, attack_program, require_contained
from shared.errors import Code, InvalidRequest
from shared.sandbox.attacks import ATTACKS, Target
from shared.sandbox.client import Sandbox
from shared.sandbox.levels import LEVELS
from shared.sandbox.probe import targets
from tests.support.compilers import CONTAINED
from tests.support.sandboxes import run_as_nobody

pytestmark = pytest.mark.sandbox

NAMES = {attack.__name__ for attack in ATTACKS}
ATTACKED = """
import json
from shared.compilers.probe import attack_compiler
print(json.dumps([[found.name, found.held, found.detail] for found in attack_compiler()]))
"""


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    monkeypatch.setenv("OF_THE_PARENT", "secret")
    with targets() as found:
        yield found


@pytest.fixture
def unknown() -> Iterator[None]:
    """Forget the probe's results on this machine, before and after a test."""
    probe._reason.cache_clear()
    yield
    probe._reason.cache_clear()


def test_without_a_sandbox_every_attack_succeeds(target: Target, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(attack_program(target))
    inheriting = ["sh", "-c", 'exec "$0" main.py 9</dev/null', sys.executable]
    ran = subprocess.run(inheriting, cwd=tmp_path, capture_output=True, check=True)
    assert json.loads(ran.stdout) == {name: {"score": 1.0} for name in NAMES}


@CONTAINED
def test_a_compiler_that_is_taken_over_is_held() -> None:
    found = attack_compiler()
    assert {each.name for each in found} == NAMES
    assert [each for each in found if not each.held] == []


@CONTAINED
def test_a_user_without_rights_holds_it_as_root_does() -> None:
    ran = run_as_nobody(ATTACKED, level="bubblewrap")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert {name for name, _, _ in found} == NAMES
    assert [each for each in found if not each[1]] == []


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "bubblewrap"])
def test_compilers_run_at_the_strongest_level_alone(level: str) -> None:
    with pytest.raises(InvalidRequest, match=f"the sandbox here is {level}") as refused:
        require_contained("c", Sandbox(level))  # type: ignore[arg-type]
    assert refused.value.code == Code.SANDBOX_UNAVAILABLE


@CONTAINED
@pytest.mark.usefixtures("unknown")
def test_where_an_attack_succeeds_no_compiler_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def succeed(_target: Target) -> bool:
        return True

    require_contained("c", Sandbox("bubblewrap"))
    probe._reason.cache_clear()
    monkeypatch.setattr(probe, "ATTACKS", (succeed,))
    with pytest.raises(InvalidRequest, match=r"not held: succeed \(it succeeded\)") as refused:
        require_contained("c", Sandbox("bubblewrap"))
    assert refused.value.code == Code.SANDBOX_UNAVAILABLE


@CONTAINED
def test_attacks_that_do_not_come_to_their_end_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_TRY_EACH", "print('{}')")
    (found,) = attack_compiler()
    assert not found.held
