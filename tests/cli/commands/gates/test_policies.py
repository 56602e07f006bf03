"""``mens policies`` and ``mens receipts``, and aliases under a policy: what passed, what failed and by how much, using
only a terminal.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from shared.database.tenancy import SHARED, Role
from shared.gates.evaluate import judge
from shared.gates.policy_file import policy_digest, read_policy
from tests.support.builders import new_adapter
from tests.support.cli_installation import CliInstallation
from tests.support.gate_evidence import AT, evidence, run_scores
from tests.support.gate_rows import STRICT, receipt

A, B = "demo@1", "demo@2"
POLICY = """\
version: "1"
runs:
  support: {eval: eval-1, file: file-1}
gates:
  truncation: {max_fraction: 0.05}
  throughput: {}
  evals:
    quality: {run: support, max_loss: 0.05}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def installed(installation: CliInstallation) -> CliInstallation:
    """Two adapters, and an alias that points to the first."""
    installation.register(new_adapter(A, final=False), new_adapter(B, final=False))
    installation.mens("aliases", "set", "prod", A)
    return installation


def judged(installed: CliInstallation) -> str:
    """A receipt that a judgement made: it failed, as one gate did, and one has too few items."""
    scores = run_scores([1.0] * 10, [1.0] * 10)
    found = judge(read_policy(POLICY), evidence(runs={"support": scores}), "support")
    stored = receipt(
        installed.services.database,
        B,
        A,
        source=POLICY,
        passed=found.overall_passed,
        valid_until=AT + timedelta(days=30),
        receipt=json.loads(found.model_dump_json(by_alias=True)),
    )
    return stored.id


def test_check_needs_no_installation(installation: CliInstallation, file: Path) -> None:
    said = installation.mens("policies", "check", str(file))
    assert "truncation\tblocks\t\tmin" not in said
    assert "truncation\tblocks\t\tmax_fraction 0.05" in said
    assert "throughput\twarns\t\tmin_tokens_per_sec cpu=1 rtx_4080_super=10" in said
    assert "evals.quality\tblocks\tsupport\tmin_items 20, max_loss 0.05" in said


def test_a_wrong_line_is_named(installation: CliInstallation, file: Path) -> None:
    file.write_text(POLICY.replace("max_loss", "max_lost"))
    said = installation.mens("policies", "check", str(file), code=1)
    assert "POLICY_INVALID" in said
    assert "line 8: gates.evals.quality.max_lost: this field does not exist." in said


def test_from_a_file_to_an_alias_that_requires_evidence(installed: CliInstallation, file: Path) -> None:
    assert "`mens policies assign alias:NAME support`" in installed.mens("policies", "put", "support", str(file))
    assert "governs alias:prod" in installed.mens(
        "policies", "assign", "alias:prod", "support", "--reason", "for users"
    )
    assert "alias:prod" in installed.mens("policies", "list")
    refused = installed.mens("aliases", "set", "prod", B, code=1)
    assert "GATE_MISSING" in refused
    assert f"`mens receipts create {B} --alias prod`" in refused
    number = judged(installed)
    refused = installed.mens("aliases", "set", "prod", B, code=1)
    assert "GATE_FAILED" in refused
    assert "truncation failed: share of tokens cut off is 0.1; at most 0.05 is required, 0.05 above it" in refused
    assert f"`mens receipts show {number}`" in refused
    assert "reason" in installed.mens("aliases", "set", "prod", B, "--override", code=1)
    assert B in installed.mens("aliases", "set", "prod", B, "--override", "--reason", "an outage")
    assert "an outage\tOVERRIDE of support" in installed.mens("aliases", "history", "prod")
    assert "for users" in installed.mens("policies", "history", "alias:prod")


def test_what_stays_under_an_older_file_of_the_name_is_said(installed: CliInstallation, file: Path) -> None:
    installed.mens("policies", "put", "support", str(file))
    for scope in ("alias:prod", "tenant"):
        installed.mens("policies", "assign", scope, "support")
    old = policy_digest(read_policy(POLICY))[:12]
    assert "stays" not in installed.mens("policies", "put", "support", str(file)), "the file is the same"
    file.write_text(POLICY.replace("0.05}\n  throughput", "0.04}\n  throughput"))
    said = installed.mens("policies", "put", "support", str(file)).splitlines()
    assert "assign" not in said[0]
    assert sorted(said[1:]) == [
        f"{scope} is still governed by the older support ({old}); assign this one: `mens policies assign {scope} support`"
        for scope in ("alias:prod", "tenant")
    ]
    installed.mens("policies", "assign", "alias:prod", "support")
    assert "alias:prod" not in installed.mens("policies", "put", "support", str(file))


def test_a_receipt_says_what_failed_by_how_much_and_what_to_do(installed: CliInstallation) -> None:
    number = judged(installed)
    said = installed.mens("receipts", "show", number)
    lines = {line.split("\t")[0]: line.split("\t")[1:] for line in said.splitlines() if "\t" in line}
    assert lines["truncation"][:4] == ["failed", "blocks", "0.1", "≤ 0.05"]
    assert lines["throughput"][:4] == ["passed", "warns", "50", "≥ 1"]
    assert lines["evals.quality"][:2] == ["no evidence", "blocks"]
    assert "items would decide" in lines["evals.quality"][-1]
    assert said.splitlines()[-1].startswith("next: give the policy's run at least ")
    assert f"{number}\t{B}\t{A}\tsupport\tfailed" in installed.mens("receipts", "list", "--adapter", B)
    assert f"receipt  {number}: failed (truncation, evals.quality)" in installed.mens("models", "show", B)


def test_a_policy_comes_with_a_move(installed: CliInstallation, tmp_path: Path) -> None:
    strict = tmp_path / "strict.yaml"
    strict.write_text(STRICT)
    installed.mens("policies", "put", "strict", str(strict))
    assert "no change" in installed.mens("aliases", "set", "prod", A, "--policy", "strict")
    assert "GATE_MISSING" in installed.mens("aliases", "split", "prod", f"{A}=9", f"{B}=1", code=1)
    receipt(installed.services.database, B, A)
    assert B in installed.mens("aliases", "split", "prod", f"{A}=9", f"{B}=1")
    assert installed.mens("policies", "show", "strict", "--source") == STRICT.strip()
    installed.become("tom", SHARED, Role.TRAINER)
    assert "ROLE_INSUFFICIENT" in installed.mens("policies", "unassign", "alias:prod", code=1)


def test_gate_that_cannot_pass_is_noted(installed: CliInstallation, file: Path) -> None:
    file.write_text(POLICY + "  pass_at_k: {}\n")
    reason = "note: The gate pass_at_k cannot pass (blocks the alias): the policy does not name a run for this gate.\n"
    assert installed.invoke("policies", "check", str(file)).stderr == reason
    assert installed.invoke("policies", "put", "few", str(file)).stderr == reason
    assert installed.invoke("policies", "assign", "alias:prod", "few").stderr == reason
