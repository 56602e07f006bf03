"""The whole preflight on real folders and files: what it finds, in which order it refuses, and who it tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.digest import digest_file
from shared.errors import MensError
from shared.preflight import Asked, InputFile, Machine, Preflight, preflight
from shared.servability import ServingLimits
from tests.tiny_base import write_base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("bases") / "tiny")


def row(prompt: str, answer: str = "yes", **labels: Any) -> str:
    return json.dumps({"prompt": prompt, "response": answer} | labels)


def check(base: Path, folder: Path, rows: list[str], machine: Machine | None = None, **asked: Any) -> Preflight:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(rows))
    entry = BaseModelEntry(name="tiny", source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    sections = {"model": {"name": "tiny"}, "data": {"train_file": "f"}} | asked.pop("sections", {})
    replay = _replay(folder, asked.pop("replay", None))
    file = InputFile("f", digest_file(path), path)
    return preflight(Asked(sections, **asked), entry, base, file, None, machine or Machine(), replay)


def _replay(folder: Path, rows: list[str] | None) -> InputFile | None:
    if rows is None:
        return None
    path = folder / "replay.jsonl"
    path.write_text("\n".join(rows))
    return InputFile("r", digest_file(path), path)


ROWS = [row(f"question {index}") for index in range(30)]


def test_what_is_found(base: Path, tmp_path: Path) -> None:
    found = check(base, tmp_path, ROWS, name="helper")
    assert (found.plan.adapter_name, found.plan.train.rows, found.supervision.rows) == ("helper", 30, 30)
    assert found.model.inventory.complete
    assert found.supervision.supervised_tokens == 30 * (len("yes") + 1)
    record = found.record()
    assert record["schema_version"] == "vox.mens.preflight.v0"
    assert record["contract_digest"] == found.plan.contract_digest
    assert {"model", "data", "supervision", "estimate"} <= record.keys()
    assert json.dumps(record)


def test_a_preset_fills_what_is_open(base: Path, tmp_path: Path) -> None:
    found = check(base, tmp_path, ROWS, preset="tiny", sections={"exec": {"seq_len": 99}})
    assert (found.plan.contract.exec.seq_len, found.sources["exec.seq_len"]) == (99, "explicit")
    assert (found.plan.contract.adapter.rank, found.sources["adapter.rank"]) == (4, "preset")


def test_the_adapter_is_named_after_its_alias(base: Path, tmp_path: Path) -> None:
    assert check(base, tmp_path, ROWS, sections={"artifact": {"alias": "prod"}}).plan.adapter_name == "prod"


def test_truncation_is_told(base: Path, tmp_path: Path) -> None:
    found = check(base, tmp_path, [*ROWS, row("long " * 100)])
    assert any(note.startswith("1 of 31 rows are longer than exec.seq_len") for note in found.notes)


@pytest.mark.parametrize(
    ("asked", "rows", "code"),
    [
        ({"preset": "nothing"}, ROWS, "UNKNOWN_PRESET"),
        ({"domain": "nothing"}, ROWS, "UNKNOWN_DOMAIN"),
        ({"sections": {"adapter": {"method": "lora"}, "quant": {"base": "none"}}}, ["broken"], "BURN_HF_GPT2_ONLY"),
        ({"sections": {"exec": {"seq_len": 513}}}, ROWS, "SEQ_LEN_TOO_LARGE"),
        ({"sections": {"adapter": {"rank": 64}}}, ROWS, "NOT_SERVABLE_RANK"),
        ({"sections": {"adapter": {"target_modules": ["nope"]}}}, ROWS, "NOT_SERVABLE_TARGETS"),
        ({}, ["broken"], "DATASET_LINE_INVALID"),
        ({}, [], "DATASET_EMPTY"),
        ({"sections": {"exec": {"seq_len": 8}}}, [row("x", " " * 3 + "y")], None),
    ],
)
def test_refusals(base: Path, tmp_path: Path, asked: dict[str, Any], rows: list[str], code: str | None) -> None:
    machine = Machine(limits=ServingLimits(max_lora_rank=16))
    if code is None:
        check(base, tmp_path, rows, machine, **asked)
        return
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, rows, machine, **asked)
    assert refused.value.code == code
    assert refused.value.remedy


def test_another_base_than_the_served_one(base: Path, tmp_path: Path) -> None:
    machine = Machine(limits=ServingLimits(max_lora_rank=16, base_digest="0" * 64))
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, ROWS, machine)
    assert refused.value.code == "NOT_SERVABLE_BASE"
    check(base, tmp_path, ROWS, machine, sections={"artifact": {"publish": False}})


def test_what_does_not_fit_is_refused_with_the_nearest_that_does(base: Path, tmp_path: Path) -> None:
    asked = {"exec": {"batch_size": 256, "seq_len": 512}}
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, ROWS, Machine(vram_bytes=(1 << 30) + (600 << 20)), sections=asked)
    assert refused.value.code == "MEMORY_DOES_NOT_FIT"
    nearest = refused.value.details["nearest_fit"]["configuration"]
    assert nearest["batch_size"] * nearest["grad_accum"] == 256 * 4
    with pytest.raises(MensError, match="takes"):
        check(base, tmp_path, ROWS, Machine(vram_bytes=1 << 20))


def test_a_refused_field_names_the_profile_that_set_it(base: Path, tmp_path: Path) -> None:
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, ROWS, domain="rust-expert")
    assert (refused.value.code, refused.value.param) == ("CONTRACT_UNSUPPORTED", "reward.hook")
    assert "The domain sets" in refused.value.remedy


def test_a_replay_file_is_in_plan_and_estimate(base: Path, tmp_path: Path) -> None:
    asked = {"data": {"train_file": "f", "replay_file": "r", "replay_ratio": 0.5, "validation_split_ratio": 0.0}}
    old = [row("old", rating=5), row("older"), row("bad", rating=1)]
    found = check(base, tmp_path, ROWS, sections=asked, replay=old)
    assert found.plan.replay is not None
    assert found.plan.replay.rows == 2  # of three: one is rated too low
    assert found.estimate.max_tokens == (30 + 2) * 3 * found.plan.contract.exec.seq_len
    assert found.estimate.optimizer_steps == found.plan.optimizer_steps == 2 * 3


# Fails while a context filter, which says what is to be learnt now, empties the file of what was learnt before.
def test_a_context_filter_leaves_the_replay_file_alone(base: Path, tmp_path: Path) -> None:
    asked = {"data": {"train_file": "f", "replay_file": "r", "context_filter": {"categories": ["new"]}}}
    found = check(base, tmp_path, [row(f"{i}", category="new") for i in range(30)], sections=asked, replay=[row("old")])
    assert found.plan.replay is not None
    assert found.plan.replay.rows == 1


@pytest.mark.parametrize(("rows", "code"), [(["broken"], "DATASET_LINE_INVALID"), ([], "DATASET_EMPTY")])
def test_a_bad_replay_file_is_refused_by_its_field(base: Path, tmp_path: Path, rows: list[str], code: str) -> None:
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, ROWS, replay=rows)
    assert (refused.value.code, refused.value.param) == (code, "data.replay_file")


def test_a_curriculum_counts_the_rows_that_pass_the_filter(base: Path, tmp_path: Path) -> None:
    asked = {"curriculum": {"enabled": True}, "data": {"train_file": "f", "validation_split_ratio": 0.0}}
    rows = [row(f"{index}", difficulty=3 if index < 16 else 9) for index in range(40)]
    found = check(base, tmp_path, rows, sections=asked)
    assert found.estimate.optimizer_steps == found.plan.optimizer_steps == 1 + 1 + 3
    easy_but_bad = [
        row(f"{index}", difficulty=3 if index < 16 else 9, rating=1 + (index >= 16) * 4) for index in range(40)
    ]
    with pytest.raises(MensError, match="Epoch 1 has no rows"):
        check(base, tmp_path, easy_but_bad, sections=asked)


def test_a_large_file_is_sampled_by_a_control_plane(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.preflight.SAMPLED_ROWS", 10)
    assert check(base, tmp_path, ROWS, Machine(thorough=False)).supervision.sampled
    assert not check(base, tmp_path, ROWS, Machine()).supervision.sampled
