"""Presets: the tables as specified, the order of precedence, and no contract that is resolved only from names is
refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.contract.contracts import FineTuneContract
from shared.contract.field_names import contract_paths
from shared.contract.flat_keys import parse_contract
from shared.contract.preset_files import Bound, SmallDataset, domain_file, ladder_file, preset_file
from shared.contract.presets import (
    DEFAULT_PRESET,
    Resolution,
    auto_row,
    domain_names,
    domain_values,
    preset_names,
    preset_values,
    resolve_contract,
    size_row,
)
from shared.contract.refusals import UNKNOWN, check_refusals
from shared.contract.sections import DEFAULT_MODEL_ID
from shared.errors import Code, ContractRejected

DATA = {"data": {"train_file": "file-1"}}
HYPER = (
    "adapter.rank", "adapter.alpha", "exec.seq_len", "exec.batch_size", "exec.grad_accum", "exec.epochs",
    "exec.warmup_steps", "exec.learning_rate",
)  # fmt: skip
TABLE: dict[str, tuple[float, ...]] = {
    "tiny": (4, 8, 128, 1, 1, 1, 10, 1e-4),
    "safe": (8, 16, 256, 2, 8, 3, 50, 2e-4),
    "4080": (16, 32, 384, 1, 8, 3, 80, 1.5e-4),
    "a100": (32, 64, 1024, 8, 2, 3, 200, 2e-4),
    "distributed": (16, 32, 512, 4, 8, 3, 150, 1.5e-4),
    "mobile_edge": (8, 16, 256, 1, 8, 3, 40, 1.5e-4),
    "vox-gen": (16, 32, 256, 2, 8, 5, 60, 1.5e-4),
}
ALIASES = {
    "4080_safe": "safe", "qwen_small_8g": "safe", "qwen_4080_16g": "4080", "qwen_rtx3090_24g": "4080",
    "default": "4080", "qwen_a100_80g": "a100",
}  # fmt: skip

names = st.none() | st.sampled_from(preset_names())
domains = st.none() | st.sampled_from(domain_names())
sizes = st.none() | st.integers(1, 200_000_000_000)
memories = st.none() | st.integers(0, 300_000)
counts = st.none() | st.integers(1, 5000)
facts = st.fixed_dictionaries(
    {"preset": names, "domain": domains, "parameters": sizes, "vram_mb": memories, "rows": counts}
)
explicit_values: dict[str, st.SearchStrategy[Any]] = {
    "adapter.rank": st.integers(1, 512), "adapter.alpha": st.integers(1, 4096), "exec.seq_len": st.integers(8, 4096),
    "exec.batch_size": st.integers(1, 64), "exec.grad_accum": st.integers(1, 64), "exec.epochs": st.integers(1, 50),
    "exec.warmup_steps": st.integers(0, 1000), "exec.learning_rate": st.floats(1e-6, 1.0),
    "exec.max_grad_norm": st.floats(0.1, 10), "exec.qlora_ce_last_k": st.integers(0, 64),
    "exec.curriculum_schedule": st.none(), "exec.adapter_tag": st.none() | st.just("mine"),
    "data.min_rating": st.integers(0, 5), "data.context_filter": st.none() | st.just({"rating_min": 2}),
    "trajectory.enabled": st.booleans(), "trajectory.tool_trace_boost": st.floats(0, 9), "reward.hook": st.none(),
    "curriculum.enabled": st.booleans(), "artifact.deployment_target": st.just("workstation"),
    "device.device": st.sampled_from(["cpu", "cuda", "auto"]),
}  # fmt: skip
explicits = st.fixed_dictionaries({}, optional=explicit_values)


def resolve(sections: dict[str, Any], **known: Any) -> Resolution:
    return resolve_contract(parse_contract(sections), **known)


def flat_values(contract: FineTuneContract) -> dict[str, Any]:
    """The contract's values as presets have them, by path."""
    dumped = contract.model_dump(mode="json")
    return {path: get(dumped, path) for path in contract_paths()}


def get(sections: dict[str, Any], path: str) -> Any:
    section, _, field = path.rpartition(".")
    return (sections[section] if section else sections)[field]


def nested(values: dict[str, Any]) -> dict[str, Any]:
    sections: dict[str, Any] = {"data": {"train_file": "file-1"}}
    for path, value in values.items():
        section, field = path.split(".")
        sections.setdefault(section, {})[field] = value
    return sections


def value(contract: FineTuneContract, path: str) -> Any:
    found: Any = contract.model_dump(mode="json")
    for part in path.split("."):
        found = found[part]
    return found


def hyper(contract: FineTuneContract) -> tuple[float, ...]:
    return tuple(value(contract, path) for path in HYPER)


def refused(**changes: Any) -> ContractRejected:
    with pytest.raises(ContractRejected) as caught:
        resolve(DATA, **changes)
    return caught.value


@pytest.mark.parametrize("name", [*TABLE, *ALIASES])
def test_presets_are_those_of_the_table(name: str) -> None:
    made = resolve(DATA, preset=name)
    assert hyper(made.contract) == TABLE[ALIASES.get(name, name)]
    assert {made.sources[path] for path in HYPER} == {"preset"}


def test_there_are_no_other_presets() -> None:
    assert set(preset_names()) == {*TABLE, *ALIASES, "auto"}
    assert len(preset_names()) == len(set(preset_names()))
    assert preset_file().default_preset == DEFAULT_PRESET
    assert preset_file().default_base_model == DEFAULT_MODEL_ID


def test_mobile_preset_sets_target_and_device() -> None:
    made = resolve(DATA, preset="mobile_edge", parameters=800_000_000).contract
    assert (made.artifact.deployment_target, made.device.device, made.exec.batch_size) == ("mobile_edge", "cpu", 1)


def test_without_names_the_defaults_stand() -> None:
    made = resolve(DATA)
    assert made.contract == parse_contract(DATA)
    assert {path for path, source in made.sources.items() if source != "default"} == {"data.train_file"}
    assert list(made.sources) == contract_paths()


@pytest.mark.parametrize(
    ("name", "near"),
    [("4090", "4080"), ("saffe", "safe"), ("TINY", "tiny"), ("vox_gen", "vox-gen"), ("a1000", "a100")],
)
def test_unknown_preset_is_refused_with_the_nearest(name: str, near: str) -> None:
    error = refused(preset=name)
    assert (error.code, error.param, error.details["nearest"]) == (Code.UNKNOWN_PRESET, "preset", near)
    assert near in error.remedy
    assert error.details["known"] == preset_names()


@pytest.mark.parametrize(("name", "near"), [("rust", "rust-expert"), ("Agents", "agents"), ("research_expert", "research-expert")])  # fmt: skip
def test_unknown_domain_is_refused_with_the_nearest(name: str, near: str) -> None:
    error = refused(domain=name)
    assert (error.code, error.param, error.details["nearest"]) == (Code.UNKNOWN_DOMAIN, "domain", near)


@pytest.mark.parametrize("what", ["preset", "domain"])
@pytest.mark.parametrize("name", ["", "qqqqqq"])
def test_name_that_resembles_nothing_gets_the_list(what: str, name: str) -> None:
    known = preset_names() if what == "preset" else domain_names()
    assert ", ".join(known) in refused(**{what: name}).remedy


@pytest.mark.parametrize(
    ("vram_mb", "row"),
    [
        (None, "tiny"), (0, "tiny"), (6144, "tiny"), (8192, "tiny"), (8188, "tiny"), (10240, "safe"),
        (12282, "prosumer_12g"), (16376, "prosumer_16g"), (20475, "prosumer_16g"), (24564, "prosumer_24g"),
        (24576, "prosumer_24g"), (32607, "prosumer_24g"), (46068, "prosumer_24g"), (49140, "a6000"), (81559, "a100"),
        (81920, "a100"), (92159, "a100"), (95830, "h100"), (143771, "h100"), (655360, "h100"),
    ],
)  # fmt: skip
def test_auto_takes_the_largest_row_that_the_card_has(vram_mb: int | None, row: str) -> None:
    assert auto_row(vram_mb).id == row


def test_auto_rows_are_those_of_the_table() -> None:
    found = {row.id: (*list(row.values.values()), row.max_vram_mb) for row in ladder_file().auto}
    assert found == {
        "tiny": (256, 1, 4, 5e-5, 8192), "safe": (384, 1, 2, 3e-5, 10240), "prosumer_12g": (512, 1, 1, 2e-5, 12288),
        "prosumer_16g": (1024, 1, 4, 2e-5, 16384), "prosumer_24g": (768, 2, 1, 1.5e-5, 24576),
        "a6000": (1024, 4, 1, 1e-5, 49152), "a100": (2048, 8, 1, 8e-6, 81920), "h100": (4096, 16, 1, 5e-6, 999999),
    }  # fmt: skip
    assert hyper(resolve(DATA, preset="auto", vram_mb=16376).contract) == (16, 32, 1024, 1, 4, 3, 100, 2e-5)


@given(memories, memories)
def test_more_memory_never_means_a_smaller_row(first: int | None, second: int | None) -> None:
    less, more = sorted([first or 0, second or 0])
    assert auto_row(less).max_vram_mb <= auto_row(more).max_vram_mb


@pytest.mark.parametrize(
    ("billions", "row"),
    [
        (0.001, None), (0.36, None), (0.49, "0.8B"), (0.6, "0.8B"), (0.87, "0.8B"), (1.24, "0.8B"), (1.54, "2B"),
        (2.0, "2B"), (3.09, "4B"), (4.2, "4B"), (7.6, "9B"), (9.0, "9B"), (14.7, "9B"), (32.5, "9B"), (72.7, "9B"),
    ],
)  # fmt: skip
def test_size_is_a_number_not_a_name(billions: float, row: str | None) -> None:
    found = size_row(int(billions * 1e9), 80_000)
    assert (found.id if found else None) == row


@pytest.mark.parametrize(
    ("billions", "vram_mb", "expected"),
    [
        (0.8, None, (16, 32, 1024, 8, 4, 3, 200, 2e-4)), (2, None, (16, 32, 768, 8, 6, 3, 200, 2e-4)),
        (4, None, (32, 64, 1024, 8, 8, 3, 200, 2e-4)), (9, None, (8, 16, 256, 1, 16, 3, 200, 1e-4)),
        (9, 16384, (8, 16, 256, 1, 16, 3, 200, 1e-4)), (14, 24564, (8, 16, 384, 1, 12, 3, 200, 2e-4)),
        (72, 81920, (8, 16, 512, 8, 8, 3, 200, 2e-4)),
    ],
)  # fmt: skip
def test_ladder_bounds_a_preset(billions: float, vram_mb: int | None, expected: tuple[float, ...]) -> None:
    made = resolve(DATA, preset="a100", parameters=int(billions * 1e9), vram_mb=vram_mb)
    assert hyper(made.contract) == expected
    changed = {path for path, new, old in zip(HYPER, expected, TABLE["a100"], strict=True) if new != old}
    assert {path for path in HYPER if made.sources[path] == "ladder"} == changed


@pytest.mark.parametrize(
    ("rows", "preset", "epochs", "warmup"),
    [(499, "tiny", 2, 10), (499, "a100", 3, 50), (500, "tiny", 1, 10), (500, "a100", 3, 200), (1, "vox-gen", 5, 50)],
)
def test_few_rows_bound_epochs_and_warmup(rows: int, preset: str, epochs: int, warmup: int) -> None:
    made = resolve(DATA, preset=preset, rows=rows).contract
    assert (made.exec.epochs, made.exec.warmup_steps) == (epochs, warmup)


def test_few_rows_leave_explicit_values_alone() -> None:
    made = resolve(DATA | {"exec": {"epochs": 9, "warmup_steps": 80}}, preset="a100", rows=10)
    assert (made.contract.exec.epochs, made.contract.exec.warmup_steps) == (9, 80)


@pytest.mark.parametrize("name", domain_names())
def test_domain_is_its_profile_over_the_defaults(name: str) -> None:
    made = resolve(DATA, domain=name)
    assert value(made.contract, "exec.adapter_tag") == name
    profile = next(profile for profile in domain_file().profiles if profile.id == name)
    for path, expected in (domain_file().defaults | profile.values).items():
        found = value(made.contract, path)
        assert made.sources[path] == "domain"
        assert expected.items() <= found.items() if isinstance(expected, dict) else found == expected


def test_domains_of_the_original_are_all_there() -> None:
    assert domain_names() == [
        "vox-lang", "rust-expert", "agents", "rocks", "research", "populi-meta", "research-expert",
    ]  # fmt: skip


def test_research_expert_is_usable() -> None:
    made = resolve(DATA, domain="research-expert").contract
    assert made.exec.qlora_ce_last_k == 64
    assert check_refusals(made, UNKNOWN) == []


def test_fields_that_the_original_ignored_are_applied() -> None:
    agents = resolve(DATA, domain="agents").contract
    assert (agents.exec.max_grad_norm, agents.trajectory.tool_trace_boost, agents.exec.weight_decay) == (0.5, 1.5, 0.01)


def test_loss_window_of_a_domain_fits_a_short_length() -> None:
    made = resolve(DATA | {"exec": {"seq_len": 16}}, domain="agents").contract
    assert made.exec.qlora_ce_last_k == 16


def test_domain_over_the_mobile_limits_is_lowered() -> None:
    made = resolve(DATA, preset="mobile_edge", domain="vox-lang")
    assert (made.contract.exec.seq_len, made.sources["exec.seq_len"]) == (512, "ladder")


@given(explicits, facts)
def test_explicit_always_wins(own: dict[str, Any], known: dict[str, Any]) -> None:
    made = resolve(nested(own), **known)
    explicit = parse_contract(nested(own))
    assert {path for path, source in made.sources.items() if source == "explicit"} == {*own, "data.train_file"}
    assert all(value(made.contract, path) == value(explicit, path) for path in own)


@given(explicits, facts.filter(lambda known: known["domain"] is not None and known["preset"] != "mobile_edge"))
def test_domain_wins_over_all_but_explicit(own: dict[str, Any], known: dict[str, Any]) -> None:
    made = resolve(nested(own), **known)
    for path in domain_values(known["domain"]).keys() - own.keys() - {"exec.qlora_ce_last_k"}:
        alone = resolve(DATA, domain=known["domain"]).contract
        assert value(made.contract, path) == value(alone, path)
        assert made.sources[path] == "domain"


@given(explicits, facts)
def test_preset_holds_where_nothing_stronger_decides(own: dict[str, Any], known: dict[str, Any]) -> None:
    made = resolve(nested(own), **known)
    preset = preset_values(known["preset"], known["vram_mb"]) if known["preset"] else {}
    for path, source in made.sources.items():
        if source == "preset":
            assert value(made.contract, path) == preset[path]
        elif source == "default":
            assert path not in preset
            assert value(made.contract, path) == value(parse_contract(DATA), path)


@given(facts)
def test_ladder_bounds_hold_for_what_is_open(known: dict[str, Any]) -> None:
    made = resolve(DATA, **known)
    row = size_row(known["parameters"], known["vram_mb"])
    if row is None or made.contract.artifact.deployment_target == "mobile_edge":
        return
    for path, bound in row.bounds.items():
        if made.sources[path] != "domain":
            assert bound.clamp(value(made.contract, path)) == value(made.contract, path)


@given(facts)
def test_contract_resolved_from_names_passes_every_gate(known: dict[str, Any]) -> None:
    made = resolve(DATA, **known).contract
    check_refusals(made, replace(UNKNOWN, device="cuda", rows=known["rows"]))
    assert parse_contract(made.model_dump(mode="json")) == made


@given(facts)
def test_resolving_twice_is_resolving_once(known: dict[str, Any]) -> None:
    first = resolve(DATA, **known)
    assert resolve(first.contract.model_dump(mode="json"), **known).contract == first.contract


def test_explicit_null_stands() -> None:
    made = resolve(DATA | {"exec": {"curriculum_schedule": None}}, domain="agents")
    assert made.contract.exec.curriculum_schedule is None


def test_alias_of_a_field_is_explicit_too() -> None:
    made = resolve(DATA | {"adapter": {"r": 5, "lora_alpha": 6}}, preset="a100")
    assert (made.contract.adapter.rank, made.contract.adapter.alpha) == (5, 6)
    assert (made.sources["adapter.rank"], made.sources["adapter.alpha"]) == ("explicit", "explicit")


def test_broken_explicit_value_is_refused_at_its_path() -> None:
    with pytest.raises(ContractRejected) as caught:
        resolve(DATA | {"exec": {"epochs": 0}}, preset="tiny")
    assert (caught.value.code, caught.value.param) == (Code.CONTRACT_INVALID, "exec.epochs")


def test_every_path_in_the_data_files_is_a_field() -> None:
    ladder = ladder_file()
    paths = {path for preset in preset_file().presets for path in preset.values}
    paths |= {path for profile in domain_file().profiles for path in profile.values} | domain_file().defaults.keys()
    paths |= ladder.auto_common.keys() | ladder.small_dataset.bounds.keys()
    paths |= {path for row in ladder.auto for path in row.values} | {p for row in ladder.sizes for p in row.bounds}
    assert paths <= set(contract_paths())


@pytest.mark.parametrize(("given_", "clamped"), [(1, 2), (2, 2), (5, 5), (9, 5)])
def test_clamp(given_: int, clamped: int) -> None:
    result = Bound(min=2, max=5).clamp(given_)
    assert result == clamped
    assert type(result) is int


def test_presets_cannot_be_changed_through_what_is_returned() -> None:
    preset_values("tiny")["adapter.rank"] = 99
    assert preset_values("tiny")["adapter.rank"] == 4


def test_bounds_of_small_files_change_the_schedule_only() -> None:
    """The options that decide how a row is read must be known before the rows are counted."""
    with pytest.raises(ValidationError, match=r"exec\.seq_len may not depend on the number of rows"):
        SmallDataset(below_rows=500, bounds={"exec.seq_len": Bound(max=128)})


def test_contract_that_nothing_is_decided_for_is_not_parsed_again() -> None:
    made = parse_contract(DATA)
    assert resolve_contract(made).contract is made


@example(
    facts={"preset": "mobile_edge", "domain": None, "parameters": 600_000_000, "vram_mb": None, "rows": None},
    explicit={},
    positions=None,
    mobile=False,
)
@given(facts=facts, explicit=explicits, positions=st.none() | st.integers(8, 5000), mobile=st.booleans())
def test_notes_report_every_chosen_value_that_was_not_kept_and_its_replacement(
    facts: dict[str, Any], explicit: dict[str, Any], positions: int | None, mobile: bool
) -> None:
    """Fails while a note is written before later bounds and sources have changed the value again."""
    target = {"artifact.deployment_target": "mobile_edge"} if mobile else {}
    try:
        found = resolve(nested(explicit | target), max_positions=positions, **facts)
    except ContractRejected:
        return
    chosen = preset_values(facts["preset"], facts["vram_mb"]) if facts["preset"] else {}
    chosen |= domain_values(facts["domain"]) if facts["domain"] else {}
    values = flat_values(found.contract)
    bounded = {*HYPER, "exec.qlora_ce_last_k"} & chosen.keys() - explicit.keys()
    not_kept = {path for path in bounded if values[path] != chosen[path]}
    assert {note.partition(" is ")[0] for note in found.notes} == not_kept
    assert len(found.notes) == len(not_kept)
    for path in not_kept:
        assert any(note.startswith(f"{path} is {values[path]}, not {chosen[path]} as in the ") for note in found.notes)
        assert found.sources[path] == "ladder"


UP_AND_DOWN = (
    "not 128 as in the preset, because the base is of 0.6B parameters and GPU memory is not known and the base has"
    " 256 positions."
)


@pytest.mark.parametrize(
    ("known", "path", "value", "note"),
    [
        ({"preset": "mobile_edge", "parameters": 600_000_000}, "exec.batch_size", 1, None),
        (
            {"preset": "a100", "domain": "vox-lang", "parameters": 8_000_000_000, "vram_mb": 81_920},
            "exec.seq_len", 1024, None,
        ),
        (
            {"preset": "tiny", "parameters": 600_000_000, "max_positions": 256},
            "exec.seq_len", 256, UP_AND_DOWN,
        ),
    ],
)  # fmt: skip
def test_a_note_reports_the_value_that_is_trained_with(
    known: dict[str, Any], path: str, value: int, note: str | None
) -> None:
    found = resolve(DATA, **known)
    assert flat_values(found.contract)[path] == value
    told = [one for one in found.notes if one.startswith(f"{path} ")]
    assert told == ([f"{path} is {value}, {note} To use 128, set the field yourself."] if note else [])
    assert found.sources[path] == ("ladder" if note else "domain" if "domain" in known else "preset")


def test_lowered_values_of_a_chosen_preset_are_reported() -> None:
    found = resolve(DATA, preset="a100", parameters=8_000_000_000, vram_mb=8_000)
    lowered = {path for path, source in found.sources.items() if source == "ladder"}
    assert "adapter.rank" in lowered
    for path in lowered:
        (note,) = [note for note in found.notes if note.startswith(f"{path} is ")]
        assert "as in the preset" in note
        assert "8B parameters and the GPU has 8000 MiB" in note
    assert resolve(DATA, preset="a100", parameters=300_000_000, vram_mb=80_000).notes == ()
    short = resolve(DATA, preset="a100", max_positions=512)
    assert (short.contract.exec.seq_len, len(short.notes)) == (512, 1)
    assert resolve(DATA, parameters=8_000_000_000).notes == (), "nobody has chosen the defaults"
    explicit = resolve(DATA | {"adapter": {"rank": 32}}, preset="a100", parameters=8_000_000_000, vram_mb=8_000)
    assert not any(note.startswith("adapter.rank") for note in explicit.notes)
