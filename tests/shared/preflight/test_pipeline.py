"""The whole preflight on real folders and files: its report, its refusals and their order, and its notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.contract import presets
from shared.contract.flat_keys import parse_contract
from shared.contract.presets import domain_names, resolve_contract
from shared.errors import MensError
from shared.hashing import digest_file
from shared.preflight import data_files
from shared.preflight.held_out import split_validation
from shared.preflight.pipeline import preflight
from shared.preflight.types import InputFile, JobRequest, Machine, Preflight, ServingLimits
from shared.tokenization.supervision import SupervisionPass, supervise_file
from tests.support.preference_rows import plain_row, rated_row
from tests.support.tiny_base import write_base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("bases") / "tiny")


def row(prompt: str, answer: str = "yes", **labels: Any) -> str:
    return json.dumps({"prompt": prompt, "response": answer} | labels)


def entry_of(base: Path) -> BaseModelEntry:
    return BaseModelEntry(name="tiny", source=LocalSource(path=str(base)), digests=digest_model_folder(base))


def check(base: Path, folder: Path, rows: list[str], machine: Machine | None = None, **request: Any) -> Preflight:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(rows))
    sections = {"model": {"name": "tiny"}, "data": {"train_file": "f"}} | request.pop("sections", {})
    validation, replay = (_file(folder, name, request.pop(name, None)) for name in ("validation", "replay"))
    file = InputFile("f", digest_file(path), path)
    return preflight(
        JobRequest(parse_contract(sections), **request),
        entry_of(base),
        base,
        file,
        validation,
        machine or Machine(),
        replay,
    )


def _file(folder: Path, name: str, rows: list[str] | None) -> InputFile | None:
    if rows is None:
        return None
    path = folder / f"{name}.jsonl"
    path.write_text("\n".join(rows))
    return InputFile(name, digest_file(path), path)


ROWS = [row(f"question {index}") for index in range(30)]


SPANNED = {"prompt": "q", "response": "yes", "syntax_spans": [{"start": 0, "end": 2, "weight": 1e300}]}


def test_lora_is_refused_by_what_the_base_is(base: Path, tmp_path: Path) -> None:
    """GPT-2 is what the original's LoRA engine could plan, so it is refused as what is no longer run."""
    gpt2 = tmp_path / "gpt2"
    gpt2.mkdir()
    (gpt2 / "config.json").write_text('{"model_type": "gpt2"}')
    lora = {"adapter": {"method": "lora"}, "quant": {"base": "none"}, "exec": {"backend": "burn"}}
    for folder, code in (
        (gpt2, "BURN_LORA_REJECTED"),
        (base, "BURN_HF_GPT2_ONLY"),
        (tmp_path, "BURN_HF_CONFIG_REQUIRED"),
    ):
        request = JobRequest(parse_contract({"data": {"train_file": "f"}} | lora))
        with pytest.raises(MensError) as refused:
            preflight(request, entry_of(base), folder, InputFile("f", "0" * 64, tmp_path / "none"), None, Machine())
        assert refused.value.code == code


@pytest.mark.parametrize("name", domain_names())
def test_every_domain_profile_takes_rows_of_its_categories(base: Path, tmp_path: Path, name: str) -> None:
    """Rows that say how difficult they are, where the profile's curriculum needs it."""
    profile = resolve_contract(parse_contract({"data": {"train_file": "f"}}), domain=name).contract
    filters = profile.data.context_filter
    assert filters and filters.categories
    easiest = filters.difficulty_min or 1
    labels = [(category, easiest + step) for category in filters.categories for step in range(3)]
    rows = [
        row(f"question {index}, {category}, {difficulty}", category=category, difficulty=difficulty, rating=4)
        for index in range(4)
        for category, difficulty in labels
    ]
    sections = {"exec": {"seq_len": 128}, "curriculum": {"enabled": True}}
    planned = check(base, tmp_path, [*rows, row("of no category")], domain=name, sections=sections)
    assert planned.plan.train.rows == len(rows)
    assert planned.sources["data.context_filter"] == "domain"


def test_rows_with_and_without_a_weight_are_planned(base: Path, tmp_path: Path) -> None:
    rows = [row("q", category="tool_trace"), *ROWS]
    check(base, tmp_path, rows, sections={"trajectory": {"enabled": True, "tool_trace_boost": 0}})


def test_the_plan_counts_the_bases_layers(base: Path, tmp_path: Path) -> None:
    plan = check(base, tmp_path, ROWS).plan
    assert plan.candle_proxy_stack_complete
    assert plan.candle_proxy_stack_keys_matched == plan.candle_proxy_stack_keys_expected == 2


def test_report_of_a_good_job(base: Path, tmp_path: Path) -> None:
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


def test_truncation_is_noted(base: Path, tmp_path: Path) -> None:
    found = check(base, tmp_path, [*ROWS, row("long " * 100)])
    assert any(note.startswith("1 of 31 rows are longer than exec.seq_len") for note in found.notes)


def test_held_out_rows_that_are_trained_on_too_are_noted(base: Path, tmp_path: Path) -> None:
    found = check(base, tmp_path, [*ROWS[:5], row("left out", rating=1)] * 12)
    note = "10 of the 10 held-out rows are also trained on: the validation loss is lower than on new rows."
    assert (found.plan.train.rows, found.plan.validation_rows) == (60, 10)
    assert all(note in notes for notes in (found.notes, found.warnings, found.data.notes))


@pytest.mark.parametrize("repeated", [{}, {"sections": {"data": {"train_file": "f", "validation_split_ratio": 0.0}}}])
def test_rows_that_are_new_or_not_held_out_are_not_noted(base: Path, tmp_path: Path, repeated: dict[str, Any]) -> None:
    found = check(base, tmp_path, ROWS * 2 if repeated else ROWS, **repeated)
    assert not [note for note in found.notes if "also trained on" in note]


@pytest.mark.parametrize(
    ("request_", "rows", "code"),
    [
        ({"preset": "nothing"}, ROWS, "UNKNOWN_PRESET"),
        ({"domain": "nothing"}, ROWS, "UNKNOWN_DOMAIN"),
        ({"sections": {"adapter": {"method": "lora"}}, "backend": "lora"}, ["broken"], "BURN_HF_GPT2_ONLY"),
        ({"sections": {"exec": {"seq_len": 513}}}, ROWS, "SEQ_LEN_TOO_LARGE"),
        ({"sections": {"adapter": {"rank": 64}}}, ROWS, "NOT_SERVABLE_RANK"),
        ({"sections": {"adapter": {"target_modules": ["nope"]}}}, ROWS, "TARGET_MODULES_UNKNOWN"),
        ({"backend": "torch"}, ["broken"], "UNKNOWN_BACKEND"),
        ({"backend": "lora"}, ["broken"], "BURN_HF_GPT2_ONLY"),
        ({"backend": "lora", "sections": {"quant": {"base": "nf4"}}}, ["broken"], "KERNEL_MISMATCH"),
        ({"backend": "qlora", "sections": {"quant": {"base": "none"}}}, ["broken"], "KERNEL_MISMATCH"),
        ({}, [json.dumps(SPANNED)], "DATASET_LINE_INVALID"),
        (
            {"sections": {"trajectory": {"enabled": True, "tool_trace_boost": 0}}},
            [row("q", category="tool_trace")] * 30,
            "NOTHING_SUPERVISED",
        ),
        (
            {"sections": {"trajectory": {"enabled": True, "tool_trace_boost": 1e-300}}},
            [row("q", category="tool_trace")] * 30,
            "NOTHING_SUPERVISED",
        ),
        ({}, ["broken"], "DATASET_LINE_INVALID"),
        ({}, [], "DATASET_EMPTY"),
    ],
)
def test_job_is_refused_with_its_code(
    base: Path, tmp_path: Path, request_: dict[str, Any], rows: list[str], code: str
) -> None:
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, rows, Machine(limits=ServingLimits(max_lora_rank=16)), **request_)
    assert refused.value.code == code
    assert refused.value.remedy


@pytest.mark.parametrize("artifact", [{"publish": False}, {}])
@pytest.mark.parametrize("targets", [["foo"], ["q_proj", "foo"], ["proj"], ["embed_tokens"]])
def test_targets_are_checked_against_the_base_whatever_is_known_of_the_server(
    base: Path, tmp_path: Path, targets: list[str], artifact: dict[str, Any]
) -> None:
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, ["broken"], sections={"adapter": {"target_modules": targets}, "artifact": artifact})
    error = refused.value
    assert (error.code, error.param) == ("TARGET_MODULES_UNKNOWN", "adapter.target_modules")
    assert "q_proj" in error.details["choices"]
    assert error.details["unknown"] == targets[-1:]


def test_row_cut_to_eight_tokens_is_trained_on(base: Path, tmp_path: Path) -> None:
    check(base, tmp_path, [row("x", " " * 3 + "y")], sections={"exec": {"seq_len": 8}})


@pytest.mark.parametrize("sections", [{"exec": {"seq_len": 513}}, {"adapter": {"rank": 64}}])
def test_what_needs_no_data_is_checked_before_the_data(
    base: Path, tmp_path: Path, sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "inspect_file", lambda *_, **__: pytest.fail("the data was read"))
    with pytest.raises(MensError, match=r"is (513|64)"):
        check(base, tmp_path, ROWS, Machine(limits=ServingLimits(max_lora_rank=16)), sections=sections)


def test_broken_file_is_not_tokenised_past_its_first_bad_line(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[int] = []
    monkeypatch.setattr(SupervisionPass, "add", lambda _, row: added.append(row.line))
    with pytest.raises(MensError, match="bad line"):
        check(base, tmp_path, [ROWS[0], "broken", *ROWS])
    assert added == [1]


@pytest.mark.parametrize("name", ["train", "validation", "replay"])
@pytest.mark.parametrize("content", [row("other"), "broken"])
def test_changed_file_is_refused_when_it_is_verified(base: Path, tmp_path: Path, name: str, content: str) -> None:
    files = {}
    for kind in ("train", "validation", "replay"):
        path = tmp_path / kind
        path.write_text("\n".join(ROWS))
        files[kind] = InputFile(kind, digest_file(path), path, verify=True)
    request = JobRequest(parse_contract({"model": {"name": "tiny"}, "data": {"train_file": "train"}}))

    def run() -> Preflight:
        return preflight(request, entry_of(base), base, files["train"], files["validation"], Machine(), files["replay"])

    assert run().plan.train.rows == 30
    files[name].path.write_text(content)
    with pytest.raises(MensError, match=f"{files[name].sha256} differs from the uploaded one") as refused:
        run()
    assert refused.value.code == "STORAGE_OBJECT_MISSING"


def test_supervision_is_that_of_the_file_alone(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass for both reports finds what a pass for supervision alone finds, sampled or not."""
    rows = [row(f"question {index}", rating=index % 5 + 1) for index in range(200)] + ["", "broken"]
    sections = {"data": {"train_file": "f", "mode": "lenient", "min_rating": 3}}
    for limit in (None, 50):
        monkeypatch.setattr(data_files, "SAMPLED_ROWS", limit)
        found = check(base, tmp_path, rows, Machine(thorough=limit is None), sections=sections)
        alone = supervise_file(tmp_path / "rows.jsonl", base, seq_len=256, min_rating=3, lenient=True, limit_rows=limit)
        assert found.supervision == alone
        assert (alone.sampled, alone.lines) == (limit is not None, 202)


def test_base_other_than_the_served_one_is_refused(base: Path, tmp_path: Path) -> None:
    machine = Machine(limits=ServingLimits(max_lora_rank=16, base_digest="0" * 64))
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, ROWS, machine)
    assert refused.value.code == "NOT_SERVABLE_BASE"
    check(base, tmp_path, ROWS, machine, sections={"artifact": {"publish": False}})


MIB = 1 << 20
LONG = {"exec": {"batch_size": 256, "seq_len": 512}}


def test_job_that_fits_in_smaller_pieces_is_planned_and_reported(base: Path, tmp_path: Path) -> None:
    """The trainer cuts a step into micro-batches by itself, so the result is the same."""
    found = check(base, tmp_path, ROWS, Machine(device="cuda", vram_bytes=(1 << 30) + 400 * MIB), sections=LONG)
    assert found.estimate.fits is False
    nearest = found.estimate.nearest_fit
    assert nearest is not None
    assert not nearest.changes_result
    assert nearest.configuration.batch_size * nearest.configuration.grad_accum == 256 * 4
    assert any("splits its steps" in note for note in found.notes)


def test_job_that_cannot_fit_is_refused(base: Path, tmp_path: Path) -> None:
    for machine in (
        Machine(device="cuda", vram_bytes=MIB),
        Machine(device="cpu", host_bytes=MIB),
        Machine(device="cpu", vram_bytes=80 << 30, host_bytes=MIB),
    ):
        with pytest.raises(MensError, match="needs") as refused:
            check(base, tmp_path, ROWS, machine)
        assert refused.value.code == "MEMORY_DOES_NOT_FIT"
        assert refused.value.param


def test_only_shorter_rows_would_fit_so_the_job_is_refused_with_how_short(base: Path, tmp_path: Path) -> None:
    requested = {"exec": {"batch_size": 1, "seq_len": 512, "max_vram_fraction": 1.0}}
    one_row = check(base, tmp_path, ROWS, sections=requested).estimate.vram_bytes
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, ROWS, Machine(device="cuda", vram_bytes=one_row - 1), sections=requested)
    nearest = refused.value.details["nearest_fit"]
    assert refused.value.param == "exec.seq_len"
    assert nearest["changes_result"]
    assert nearest["configuration"]["seq_len"] < 512


def test_a_base_may_be_held_in_parts_by_several_gpus(base: Path, tmp_path: Path) -> None:
    requested = {"exec": {"batch_size": 1, "seq_len": 512, "max_vram_fraction": 1.0}}
    whole = check(base, tmp_path, ROWS, sections=requested).estimate.vram_bytes
    check(base, tmp_path, ROWS, Machine(device="cuda", vram_bytes=whole - 1, devices=8), sections=requested)
    # What each GPU holds of its own fits none of them, and a step of one row has one process.
    one_row = {"exec": requested["exec"] | {"grad_accum": 1}}
    for memory, sections in ((300 * MIB, requested), (whole - 1, one_row)):
        with pytest.raises(MensError) as refused:
            check(base, tmp_path, ROWS, Machine(device="cuda", vram_bytes=memory, devices=8), sections=sections)
        assert refused.value.code == "MEMORY_DOES_NOT_FIT"


def test_memory_that_others_hold_is_reported(base: Path, tmp_path: Path) -> None:
    found = check(base, tmp_path, ROWS, Machine(device="cuda", vram_bytes=80 << 30, free_bytes=MIB))
    assert any("1 MiB of the device's memory are free now" in note for note in found.notes)


def test_the_gpu_decides_what_the_preset_auto_is(base: Path, tmp_path: Path) -> None:
    lengths = [
        check(base, tmp_path, ROWS, machine, preset="auto").plan.contract.exec.seq_len
        for machine in (
            Machine(device="cuda", vram_bytes=80 << 30),
            Machine(device="cpu", host_bytes=80 << 30),
            Machine(),
        )
    ]
    assert lengths == [512, 256, 256], "the row of 80 GB is longer than this base can read"


def test_an_auto_preset_for_a_machine_that_nobody_knows_is_reported(base: Path, tmp_path: Path) -> None:
    """A job that no worker can run must not get the row of 8 GB without a warning."""

    def told(machine: Machine, preset: str = "auto") -> list[str]:
        notes = check(base, tmp_path, ROWS, machine, preset=preset).notes
        return [note for note in notes if "smallest row (GPUs of 8192 MiB)" in note]

    assert len(told(Machine())) == 1
    assert told(Machine(), "tiny") == []
    for known in (Machine(device="cuda", vram_bytes=8 << 30), Machine(device="cpu", host_bytes=80 << 30)):
        assert told(known) == []


def test_a_refused_field_names_the_profile_that_set_it(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presets, "domain_values", lambda name: {"reward.hook": "cargo_build"})
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, ROWS, domain="rust-expert")
    assert (refused.value.code, refused.value.param) == ("CONTRACT_UNSUPPORTED", "reward.hook")
    assert "The domain sets" in refused.value.remedy


def test_a_replay_file_is_in_plan_and_estimate(base: Path, tmp_path: Path) -> None:
    requested = {"data": {"train_file": "f", "replay_file": "r", "replay_ratio": 0.5, "validation_split_ratio": 0.0}}
    old = [row("old", rating=5), row("older"), row("bad", rating=1)]
    found = check(base, tmp_path, ROWS, sections=requested, replay=old)
    assert found.plan.replay is not None
    assert found.plan.replay.rows == 2  # of three: one is rated too low
    assert found.estimate.max_tokens == (30 + 2) * 3 * found.plan.contract.exec.seq_len
    assert found.estimate.optimizer_steps == found.plan.optimizer_steps == 2 * 3


# Fails while a context filter, which selects what is trained on now, empties the file of what was trained on before.
def test_a_context_filter_leaves_the_replay_file_alone(base: Path, tmp_path: Path) -> None:
    requested = {"data": {"train_file": "f", "replay_file": "r", "context_filter": {"categories": ["new"]}}}
    found = check(
        base, tmp_path, [row(f"{i}", category="new") for i in range(30)], sections=requested, replay=[row("old")]
    )
    assert found.plan.replay is not None
    assert found.plan.replay.rows == 1


@pytest.mark.parametrize(("rows", "code"), [(["broken"], "DATASET_LINE_INVALID"), ([], "DATASET_EMPTY")])
def test_a_bad_replay_file_is_refused_by_its_field(base: Path, tmp_path: Path, rows: list[str], code: str) -> None:
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, ROWS, replay=rows)
    assert (refused.value.code, refused.value.param) == (code, "data.replay_file")


def test_a_curriculum_counts_the_rows_that_pass_the_filter(base: Path, tmp_path: Path) -> None:
    requested = {"curriculum": {"enabled": True}, "data": {"train_file": "f", "validation_split_ratio": 0.0}}
    rows = [row(f"{index}", difficulty=3 if index < 16 else 9) for index in range(40)]
    found = check(base, tmp_path, rows, sections=requested)
    assert found.estimate.optimizer_steps == found.plan.optimizer_steps == 1 + 1 + 3
    easy_but_bad = [
        row(f"{index}", difficulty=3 if index < 16 else 9, rating=1 + (index >= 16) * 4) for index in range(40)
    ]
    with pytest.raises(MensError, match="Epoch 1 has no rows"):
        check(base, tmp_path, easy_but_bad, sections=requested)


def test_a_large_file_is_sampled_by_a_control_plane(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.preflight.data_files.SAMPLED_ROWS", 10)
    assert check(base, tmp_path, ROWS, Machine(thorough=False)).supervision.sampled
    assert not check(base, tmp_path, ROWS, Machine()).supervision.sampled


CALLS = json.dumps(
    {
        "messages": [
            {"role": "user", "content": "1 + 1?"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]},
        ]
    }
)
"""A row that the base's template does not take: it writes no tool calls."""


@pytest.mark.parametrize("name", ["train", "validation", "replay"])
def test_every_file_goes_through_the_template(base: Path, tmp_path: Path, name: str) -> None:
    rows = {"train": ROWS, "validation": ROWS, "replay": ROWS}
    rows[name] = [*ROWS, CALLS]
    train = rows.pop("train")
    with pytest.raises(MensError, match="line 31: In line 31: The base's chat template leaves out") as refused:
        check(base, tmp_path, train, **rows)
    assert (refused.value.code, refused.value.param) == ("TEMPLATE_UNSUPPORTED", f"data.{name}_file")


@pytest.mark.parametrize("name", ["train", "validation", "replay"])
def test_lenient_skips_rows_that_the_template_refuses_and_says_so(base: Path, tmp_path: Path, name: str) -> None:
    rows = {"train": ROWS, "validation": ROWS, "replay": ROWS}
    rows[name] = [CALLS, *ROWS, CALLS]
    train = rows.pop("train")
    lenient = {"data": {"train_file": "f", "mode": "lenient"}}
    kind = "" if name == "train" else f"{name} "
    found = check(base, tmp_path, train, sections=lenient, **rows)
    told = f"2 {kind}rows cannot be written with the base's chat template and are skipped: lines 1, 32."
    assert told in found.warnings
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, **{"rows": train, **rows, name if kind else "rows": [CALLS]}, sections=lenient)
    assert (refused.value.code, refused.value.param) == ("TEMPLATE_UNSUPPORTED", f"data.{name}_file")


def test_rows_of_every_file_decide_the_length(base: Path, tmp_path: Path) -> None:
    for name in ("validation", "replay"):
        found = check(base, tmp_path, ROWS, **{name: [*ROWS, row("q" * 400)]})
        assert found.plan.contract.exec.seq_len == 512
        assert not found.warnings


def test_keys_of_replay_rows_are_reported(base: Path, tmp_path: Path) -> None:
    found = check(base, tmp_path, ROWS, replay=[row("old", source="web")])
    assert found.warnings == ["Keys of replay rows that are not used: source (1)."]


def test_an_open_precision_is_decided_in_the_plan_and_planned_again_as_it_is(base: Path, tmp_path: Path) -> None:
    """The worker, on a separate machine, checks the decided contract again."""
    large, small = Machine(device="cpu", host_bytes=80 << 30), Machine(device="cpu", host_bytes=540 * MIB)
    first = check(base, tmp_path, ROWS, large)
    assert (first.plan.contract.adapter.method, first.plan.contract.quant.base) == ("lora", "none")
    assert (first.plan.execution_kernel, first.plan.candle_compat_mode) == ("lora", False)
    assert (first.precision.precision, first.sources["quant.base"]) == ("float32", "machine")
    assert "precision" in first.record()
    again = check(base, tmp_path, ROWS, small, sections=first.plan.contract.model_dump(mode="json"), accepted=True)
    assert again.plan.contract == first.plan.contract
    other = check(base, tmp_path, ROWS, small)
    assert (other.plan.contract.adapter.method, other.plan.contract.quant.base) == ("qlora", "nf4")
    assert (other.plan.execution_kernel, other.plan.candle_compat_mode) == ("qlora", True)
    assert "GiB" in other.precision.reason


def test_full_precision_never_costs_a_row_its_beginning(base: Path, tmp_path: Path) -> None:
    """The device holds the longest row over NF4 and not over the unquantised base."""
    rows = [row("long " * 80)] * 30
    whole = check(base, tmp_path, rows, Machine(device="cuda", vram_bytes=80 << 30))
    assert whole.plan.contract.quant.base == "none"
    for size in range(1240, 1800, 40):
        found = check(base, tmp_path, rows, Machine(device="cuda", vram_bytes=size * MIB))
        if found.plan.contract.quant.base == "none":
            assert found.supervision.truncated_rows == 0


DPO, KTO = {"method": {"type": "dpo"}}, {"method": {"type": "kto"}}
ALL_TRAINED = {"data": {"train_file": "f", "validation_split_ratio": 0.0}}


def pairs(count: int = 40, **more: Any) -> list[str]:
    return [json.dumps(plain_row(f"question {index}", "Because.", "No.", **more)) for index in range(count)]


def rated_line(index: int, label: bool, text: str = "Because.", **more: Any) -> str:
    return json.dumps(rated_row(f"question {index}", text, label, **more))


def rated(count: int = 40, good: int = 30) -> list[str]:
    return [rated_line(index, index < good) for index in range(count)]


@pytest.mark.parametrize(
    ("written", "weights"),
    [
        ({}, (1.0, 3.0)),
        ({"desirable_weight": 2.0}, (2.0, 6.0)),
        ({"undesirable_weight": 1.5}, (0.5, 1.5)),
        ({"desirable_weight": 1.0, "undesirable_weight": 1.0}, (1.0, 1.0)),
    ],
)
def test_rated_answers_are_planned_with_equal_weight_in_total(
    base: Path, tmp_path: Path, written: dict[str, float], weights: tuple[float, float]
) -> None:
    found = check(base, tmp_path, rated(), sections=KTO | ALL_TRAINED | {"preference": written})
    section = found.plan.contract.preference
    assert (section.loss, section.beta, section.desirable_weight, section.undesirable_weight) == ("kto", 0.1, *weights)
    assert found.estimate.configuration.sequences == 1
    assert found.supervision.rows == found.plan.train.rows == 40
    assert any("that are rated good weigh 3 times" in note for note in found.warnings) is (weights == (1.0, 1.0))


BY_RATING = [rated_line(index, index < 30, rating=5 if index < 30 else 1) for index in range(40)]


def test_rated_answers_that_the_filter_leaves_out_are_not_a_second_label(base: Path, tmp_path: Path) -> None:
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, BY_RATING, sections=KTO)
    assert (refused.value.code, refused.value.details) == ("KTO_ONE_LABEL", {"good": 30, "bad": 0, "held_out": 0})
    sections = KTO | {"data": {"train_file": "f", "min_rating": 0, "validation_split_ratio": 0.0}}
    assert check(base, tmp_path, BY_RATING, sections=sections).plan.contract.preference.undesirable_weight == 3.0


def test_pairs_that_the_filter_leaves_out_contradict_nothing(base: Path, tmp_path: Path) -> None:
    opposite = [json.dumps(plain_row(f"question {index}", "No.", "Because.", rating=1)) for index in range(40)]
    found = check(base, tmp_path, [*pairs(), *opposite], sections=DPO)
    assert found.data.training.preferences is not None
    assert (found.data.training.preferences.pairs, found.data.training.preferences.contradicting) == (40, 0)
    with pytest.raises(MensError, match="prefer the opposite"):
        check(base, tmp_path, [*pairs(), *opposite], sections=DPO | {"data": {"train_file": "f", "min_rating": 0}})


def test_rated_answers_are_counted_without_those_that_are_held_out(base: Path, tmp_path: Path) -> None:
    training, held_out = (part.tolist() for part in split_validation(40, 10, seed=7))
    sections = KTO | {"exec": {"seed": 7}}
    only_held_out = [rated_line(index, index != held_out[0]) for index in range(40)]
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, only_held_out, sections=sections)
    assert (refused.value.code, refused.value.details) == ("KTO_ONE_LABEL", {"good": 30, "bad": 0, "held_out": 10})
    assert "data.validation_split_ratio to 0" in refused.value.remedy
    all_trained = check(base, tmp_path, only_held_out, sections=sections | ALL_TRAINED)
    assert all_trained.plan.contract.preference.undesirable_weight == 39.0
    bad = {*held_out[:5], *training[:5]}
    found = check(base, tmp_path, [rated_line(index, index not in bad) for index in range(40)], sections=sections)
    assert found.plan.contract.preference.undesirable_weight == 5.0


def test_pairs_are_planned_with_two_sequences_a_row(base: Path, tmp_path: Path) -> None:
    machine = Machine(device="cpu", host_bytes=8 << 30)
    answers, both = (
        check(base, tmp_path, rows, machine, sections={**sections, "exec": {"seq_len": 256}})
        for rows, sections in ((ROWS, {}), (pairs(), DPO))
    )
    assert (both.estimate.configuration.sequences, both.estimate.max_tokens) == (2, 40 * 3 * 256 * 2 - 10 * 3 * 256 * 2)
    assert both.estimate.vram.activations >= answers.estimate.vram.activations
    assert both.supervision.rows == both.plan.train.rows == 40
    assert both.supervision.supervised_tokens > 0
    assert both.plan.contract.preference.beta == 0.1
    assert any(
        "which suits supervised training; set it to 2e-05, the rate for preferences" in note for note in both.notes
    )


@pytest.mark.parametrize(
    ("rows", "sections", "code", "param"),
    [
        (ROWS, DPO, "ROWS_OF_OTHER_METHOD", "data.train_file"),
        (pairs(), {}, "ROWS_OF_OTHER_METHOD", "data.train_file"),
        ([*pairs(), *ROWS], DPO, "DATASET_LINE_INVALID", "data.train_file"),
        (pairs(), KTO, "ROWS_OF_OTHER_METHOD", "data.train_file"),
        (rated(), DPO, "ROWS_OF_OTHER_METHOD", "data.train_file"),
        (ROWS, KTO, "ROWS_OF_OTHER_METHOD", "data.train_file"),
        ([*rated(), *pairs()], KTO, "DATASET_LINE_INVALID", "data.train_file"),
        ([*rated(), rated_line(0, False)], KTO, "DATASET_LINE_INVALID", "data.train_file"),
        ([rated_line(index, True) for index in range(40)], KTO, "KTO_ONE_LABEL", "data.train_file"),
        (rated(), KTO | {"adapter": {"dropout": 0.1}}, "CONTRACT_UNSUPPORTED", "adapter.dropout"),
        (rated(), KTO | {"preference": {"loss": "ipo"}}, "CONTRACT_INVALID", "preference.loss"),
        (pairs(), DPO | {"preference": {"loss": "kto"}}, "CONTRACT_INVALID", "preference.loss"),
        (rated(), KTO | {"preference": {"sft_weight": 0.2}}, "CONTRACT_INVALID", "preference.sft_weight"),
        (rated(), KTO | {"preference": {"label_smoothing": 0.2}}, "CONTRACT_INVALID", "preference.label_smoothing"),
        (pairs(), DPO | {"preference": {"desirable_weight": 2}}, "CONTRACT_INVALID", "preference.desirable_weight"),
        ([*rated(), rated_line(90, True, "long " * 200)], KTO | {"exec": {"seq_len": 64}}, "NOTHING_SUPERVISED", "data.train_file"),
        (pairs(), {"method": {"type": "reinforcement"}}, "CONTRACT_UNSUPPORTED", "method.type"),
        (pairs(), DPO | {"trajectory": {"enabled": True}}, "CONTRACT_UNSUPPORTED", "trajectory.enabled"),
        (pairs(), DPO | {"exec": {"qlora_ce_last_k": 3}}, "CONTRACT_UNSUPPORTED", "exec.qlora_ce_last_k"),
        (pairs(), DPO | {"adapter": {"dropout": 0.1}}, "CONTRACT_UNSUPPORTED", "adapter.dropout"),
        (pairs(), DPO | {"preference": {"reference": "parent"}}, "CONTRACT_UNSUPPORTED", "preference.reference"),
        (pairs(), DPO | {"data": {"train_file": "f", "replay_file": "g"}}, "CONTRACT_UNSUPPORTED", "data.replay_file"),
        (ROWS, {"preference": {"beta": 0.3}}, "CONTRACT_INVALID", "preference"),
        (pairs(), DPO | {"preference": {"loss": "ipo", "label_smoothing": 0.1}}, "CONTRACT_INVALID", "preference.label_smoothing"),
        ([*pairs(1), json.dumps(plain_row("question 0", "No.", "Because."))] * 9, DPO, "PREFERENCES_CONTRADICT", "data.train_file"),
        ([*pairs(), json.dumps(plain_row("q", "long " * 200, "No."))], DPO | {"exec": {"seq_len": 64}}, "NOTHING_SUPERVISED", "data.train_file"),
    ],
)  # fmt: skip
def test_what_cannot_be_learnt_from_pairs_is_refused_before_it_is_queued(
    base: Path, tmp_path: Path, rows: list[str], sections: dict[str, Any], code: str, param: str
) -> None:
    with pytest.raises(MensError) as refused:
        check(base, tmp_path, rows, sections=sections)
    assert (refused.value.code, refused.value.param) == (code, param)


def test_held_out_prompts_that_are_trained_on_are_reported(base: Path, tmp_path: Path) -> None:
    repeated = [json.dumps(plain_row("question", f"Because of {index}.", "No.")) for index in range(40)]
    notes = check(base, tmp_path, repeated, sections=DPO).notes
    assert any("10 of the 10 held-out pairs have a prompt that is also trained on" in note for note in notes)


def test_supervised_contracts_keep_their_digest(base: Path, tmp_path: Path) -> None:
    plan = check(base, tmp_path, ROWS).plan
    written = check(base, tmp_path, ROWS, sections={"method": {"type": "supervised"}}).plan
    assert plan.contract_digest == written.contract_digest
    assert check(base, tmp_path, pairs(), sections=DPO).plan.contract_digest != plan.contract_digest
