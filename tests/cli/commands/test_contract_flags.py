"""Flags of the original command line: each sets a field, or the error names its replacement."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.commands.contract_flags import REPLACED, parse_flags
from cli.main import app
from shared.contract.flat_keys import parse_contract
from shared.errors import Code, ContractRejected

ORIGINAL = [
    "--device=best",
    "--backend=qlora",
    "--rank=8",
    "--alpha=16",
    "--seq-len=512",
    "--batch-size=2",
    "--grad-accum=2",
    "--epochs=1",
    "--lr=1e-4",
    "--warmup=10",
    "--seed=42",
    "--min-rating=3",
    "--deployment-target=workstation",
    "--vram-limit-fraction=0.5",
    "--adapter-tag=mine",
    "--tokenizer=hf",
    "--qlora-no-double-quant",
    "--qlora-require-full-proxy-stack=false",
    "--qlora-allow-partial-proxy-stack",
    "--qlora-lm-head-only=false",
    "--qlora-max-skip-rate=0.1",
    "--qlora-proxy-max-layers=null",
    "--qlora-ce-last-k=64",
    "--checkpoint-every=10",
    "--validation-split-ratio=.05",
    "--require-gpu=false",
    "--allow-cpu-fallback=true",
    "--curriculum",
    "--optimizer-experiment-mode=off",
    "--base-model-family=qwen",
    "--upstream-model-id=x",
    "--license-class=mit",
    "--attribution-required",
    "--trajectory-weighting-enabled",
    "--trajectory-tool-trace-boost=1.1",
    "--trajectory-failure-category-boost=1.15",
    "--trajectory-quality-floor=3",
    "--trajectory-quality-boost=1.05",
]
DROPPED = [
    "data-dir",
    "output-dir",
    "resume",
    "force-restart",
    "data-mode",
    "fast-corpus",
    "context-filter",
    "process-priority",
    "background",
    "log-dir",
    "cloud",
    "max-budget",
    "train-data-hf",
    "adapter-upload-hf",
    "max-runtime-secs",
    "persistent",
]


def sections(*flags: str) -> dict[str, Any]:
    return parse_flags(flags)


@pytest.mark.parametrize("flag", ORIGINAL)
def test_every_flag_of_the_original_is_a_field(flag: str) -> None:
    parse_contract({"data": {"train_file": "f"} | sections(flag).pop("data", {})} | _without_data(sections(flag)))


def _without_data(made: dict[str, Any]) -> dict[str, Any]:
    return {name: fields for name, fields in made.items() if name != "data"}


@pytest.mark.parametrize("name", DROPPED)
def test_every_other_flag_names_its_replacement(name: str) -> None:
    with pytest.raises(ContractRejected) as refused:
        sections(f"--{name}", "value")
    assert (refused.value.code, refused.value.param) == (Code.CONTRACT_UNSUPPORTED, f"--{name}")
    assert refused.value.remedy
    assert len(REPLACED) == len(DROPPED)


def test_values_are_read_as_json_or_text() -> None:
    made = sections("--alpha", "64", "--curriculum", "--target-modules", "q_proj,v_proj", "--adapter-tag=x")
    assert made["adapter"] == {"alpha": 64, "target_modules": ["q_proj", "v_proj"]}
    assert made["curriculum"] == {"enabled": True}
    assert made["exec"] == {"adapter_tag": "x"}


@pytest.mark.parametrize(
    ("flag", "text", "section", "expected"),
    [
        ("--target-modules", "q_proj", "adapter", {"target_modules": ["q_proj"]}),
        ("--target-modules", '["q_proj", "v_proj"]', "adapter", {"target_modules": ["q_proj", "v_proj"]}),
        ("--target-modules", "null", "adapter", {"target_modules": None}),
        ("--adapter-tag", "2024", "exec", {"adapter_tag": "2024"}),
        ("--adapter-tag", "true", "exec", {"adapter_tag": "true"}),
        ("--license-class", "1,2", "provenance", {"license_class": "1,2"}),
        ("--quantization", "none", "quant", {"base": "none"}),
        ("--alpha", "NaN", "adapter", {"alpha": "NaN"}),
    ],
)
def test_the_fields_type_decides_what_a_text_means(
    flag: str, text: str, section: str, expected: dict[str, Any]
) -> None:
    assert sections(flag, text)[section] == expected


@pytest.mark.parametrize(("flags", "param"), [(["--alhpa", "3"], "alhpa"), (["stray"], "stray")])
def test_an_unknown_flag_is_refused(flags: list[str], param: str) -> None:
    with pytest.raises(ContractRejected) as refused:
        sections(*flags)
    assert (refused.value.code, refused.value.param) == (Code.CONTRACT_INVALID, param)


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [
        ("--modl", "Did you mean --model?"),
        ("--grad-acum", "Did you mean --grad-accum?"),
        ("--zzz", "`mens train --help` lists"),
    ],
)
def test_an_unknown_option_is_called_an_option(flag: str, remedy: str) -> None:
    with pytest.raises(ContractRejected) as refused:
        sections(flag, "3")
    assert str(refused.value).startswith(f"CONTRACT_INVALID: The option {flag} does not exist. {remedy}")


@pytest.mark.parametrize("command", ["train", "plan"])
def test_names_of_other_programs_in_the_help_are_accepted(command: str) -> None:
    shown = " ".join(CliRunner().invoke(app, [command, "--help"]).stdout.split())
    names = re.search(r"names that other programs use, e\.g\. ([^.]+)\.", shown)
    assert names
    sections = parse_flags([word for name in names[1].split(", ") for word in (name, "8")])
    assert sections == {"exec": {"seq_len": 8, "learning_rate": 8, "epochs": 8}, "adapter": {"rank": 8}}
