"""Policy files: the original's defaults, a closed schema, and errors that name path and line."""

from __future__ import annotations

import pytest

from shared.errors import Code, InvalidRequest
from shared.gates.policy import GatePolicy
from shared.gates.policy_file import policy_digest, read_policy

ALL = """\
version: "1"
gates:
  supervised_ratio: {}
  truncation: {}
  throughput: {}
  eval_local: {}
  pass_at_k: {}
  collateral_damage: {}
  per_context: {}
  modal_mix: {}
  mcp_tool_schema: {}
  anti_stub: {}
  review_recurrence: {}
"""


def test_what_a_file_leaves_out_is_the_originals() -> None:
    gates = read_policy(ALL).gates.model_dump(exclude_none=True)
    named = ("run", "min_items", "applies")
    found = {
        name: {
            key: value
            for key, value in gate.items()
            if key not in named and not key.endswith("criterion") and key != "k"
        }
        for name, gate in gates.items()
        if gate
    }
    assert found == {
        "supervised_ratio": {"min_pct": 10, "block": True},
        "truncation": {"max_fraction": 0.5, "block": True},
        "throughput": {"min_tokens_per_sec": {"cpu": 1, "rtx_4080_super": 10}, "block": False},
        "eval_local": {"min_parse_rate": 0.6, "min_coverage_pct": 0.35, "block": True},
        "pass_at_k": {"min_pass_at_1": 0.25, "min_pass_at_k": 0.5, "max_regression_drop": 0.03, "block": True},
        "collateral_damage": {"max_degradation": 0.05, "block": True},
        "modal_mix": {"max_voice_fraction": 0.3, "block": False},
        "mcp_tool_schema": {"min": 0, "block": False},
        "anti_stub": {
            "min_pass_rate": 0.92,
            "max_placeholder_rate": 0.08,
            "max_trivial_rate": 0.08,
            "min_richness": 0.2,
            "block": True,
        },
        "review_recurrence": {
            "max_repeated_rate": 0.3,
            "max_post_regression_rate": 0.15,
            "min_delta": 0.01,
            "block": True,
        },
    }


def test_digest_depends_on_the_gates_not_on_their_spelling() -> None:
    short = read_policy('version: "1"\ngates:\n  truncation: {}\n')
    long = read_policy('{"gates": {"truncation": {"block": true, "max_fraction": 0.50}}, "version": "1"}')
    assert policy_digest(short) == policy_digest(long)
    assert policy_digest(short) != policy_digest(read_policy('version: "1"\ngates: {truncation: {block: false}}'))


@pytest.mark.parametrize(
    ("text", "param", "line", "words"),
    [
        ('version: "1"\ngates:\n  nope: {}\n', "gates.nope", 3, "this field does not exist"),
        (
            'version: "1"\ngates:\n  truncation:\n    max_fraction: 2\n',
            "gates.truncation.max_fraction",
            4,
            "equal to 1",
        ),
        ('version: "1"\n', "gates", 1, "required"),
        ('version: "1"\ngates: {}\n', "", None, "requires nothing"),
        ('version: "2"\ngates: {truncation: {}}\n', "version", 1, "'1'"),
        ('version: "1"\ngates:\n  pass_at_k:\n    run: bench\n', "gates.pass_at_k.run", 4, "'bench' is not one of"),
        ('version: "1"\ngates:\n  evals:\n    q: {block: true}\n', "gates.evals.q", 4, "requires nothing"),
        ('version: "1"\ngates:\n  truncation: {}\n  truncation: {}\n', "gates.truncation", 4, "twice"),
        ('version: "1"\nruns: &a {}\ngates: *a\n', "", 2, "references"),
        (
            'version: "1"\nruns:\n  bench: {eval: e, file: f, samples: 4}\ngates: {pass_at_k: {run: bench}}\n',
            "runs.bench",
            3,
            "above 0",
        ),
        ("gates: [", "", 1, "not YAML"),
        ("- 1", "", 1, "mapping"),
        ("a" * 70_000, "", None, "bytes"),
        ("gates: " + "[" * 30_000, "", 1, "too deeply"),
        ('version: "1"\ngates: {truncation: {max_fraction: .nan}}', "gates.truncation.max_fraction", 2, "finite"),
    ],
)
def test_what_is_wrong_is_named_with_path_and_line(text: str, param: str, line: int | None, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_policy(text)
    error = caught.value
    assert error.code is Code.POLICY_INVALID
    assert words in error.message
    if param:
        assert error.param == param
    if line:
        assert error.details["line"] == line
        assert error.message.startswith(f"line {line}: ")


def test_a_policy_reads_back_from_what_is_stored() -> None:
    policy = read_policy(ALL)
    assert GatePolicy.model_validate(policy.model_dump(mode="json")) == policy


def test_digest_of_a_stored_policy_stays_when_gates_come_to_be() -> None:
    """It is what receipts and assignments name: another one would leave every receipt without its policy."""
    source = (
        'version: "1"\nruns: {support: {eval: eval-1, file: file-1}}\n'
        "gates: {truncation: {}, evals: {quality: {run: support, max_loss: 0.1}}}\n"
    )
    assert policy_digest(read_policy(source)) == "efbdfeddc2a845ee223102545f4fa1e03027813ef64d552bb27a32632c9e8ea3"
    stricter = source.replace("file: file-1", "file: file-1, noise_floor: true")
    assert policy_digest(read_policy(stricter)) != policy_digest(read_policy(source))
