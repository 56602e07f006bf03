"""``mens corpus eval``: the file of measurements, the gates, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from cli.main import app
from tests.corpus.mixing.mixes import write_rows

runner = CliRunner()


def test_measures_are_written_and_a_gate_that_blocks_fails(tmp_path: Path) -> None:
    good = "```python\ndef add(a, b):\n    if a:\n        return a + b\n    return b\n```"
    write_rows(tmp_path / "a.jsonl", *({"prompt": "Write it.", "response": good} for _ in range(20)))
    out, policy = tmp_path / "eval_results.json", tmp_path / "gates.yaml"
    command = ["corpus", "eval", str(tmp_path / "a.jsonl"), "--out", str(out)]
    result = runner.invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "vox_parse_rate: 1.0\n" in result.output
    assert "gate" not in result.output
    assert json.loads(out.read_text())["construct_coverage_pct"] > 1
    policy.write_text('version: "1"\ngates: {eval_local: {}, anti_stub: {}}\n')
    failed = runner.invoke(app, [*command, "--policy", str(policy)])
    assert failed.exit_code == 1
    assert "eval_local\tfailed\tconstruct coverage is 0.148; at least 0.35 is required" in failed.output
    assert "anti_stub\tpassed\t" in failed.output
    policy.write_text('version: "1"\ngates: {eval_local: {block: false}}\n')
    warned = runner.invoke(app, [*command, "--policy", str(policy), "--json"])
    assert warned.exit_code == 0
    assert [row["status"] for row in json.loads(warned.output)["gates"]] == ["failed"]
    policy.write_text("gates: {\n")
    wrong = runner.invoke(app, [*command, "--policy", str(policy)])
    assert (wrong.exit_code, "POLICY_INVALID" in wrong.output) == (1, True)
