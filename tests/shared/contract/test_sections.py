"""The fine-tune contract: defaults, ranges, aliases, digest, published schema."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from shared.contract.contracts import FineTuneContract, MergeContract, contract_digest
from shared.contract.sections import DEFAULT_MODEL_ID, AdapterSection, ContextFilter, CurriculumSchedule
from shared.contract.values import ContractValue, describe_bad_name
from tests.support.builders import contract

GOLDEN_SCHEMA = Path(__file__).parents[1] / "golden" / "contract.schema.json"
CONTENT = {"train_file": "c" * 64, "base": "d" * 64}
GOLDEN_DIGEST = "2589dd070533a6f4d6483c28948847e0ea49242d6d30f795823b549f76b44785"

DEFAULTS: dict[str, Any] = {
    "model": {"hf_repo": "tiny", "weight_shards": None, "config_json": None, "tokenizer_json": None},
    "provenance": {
        "base_family": None, "upstream_model_id": None, "license_class": None, "attribution_required": False, "answer_models": None,
    },
    "data": {
        "train_file": "file-1", "validation_file": None, "tokenizer_mode": "hf", "min_rating": 3,
        "context_filter": None, "validation_split_ratio": 0.05, "mode": "strict", "replay_file": None,
        "replay_ratio": 0.1, "template_arguments": {}, "thoughts": "learn",
    },
    "adapter": {
        "method": "auto", "rank": 16, "alpha": 32, "dropout": 0.0, "targets": "full_graph", "target_modules": None,
        "continue_from": None,
    },
    "quant": {"base": "auto", "double_quant": True},
    "exec": {
        "epochs": 3, "seq_len": 256, "batch_size": 4, "grad_accum": 4, "learning_rate": 2e-4, "warmup_steps": 100,
        "weight_decay": 0.01, "max_grad_norm": 1.0, "seed": 42, "checkpoint_every": 500, "checkpoint_minutes": 5.0,
        "early_stopping_patience": None, "resume_from": None,
        "max_vram_fraction": None, "adapter_tag": None, "backend": None, "qlora_require_full_proxy_stack": False,
        "qlora_allow_partial_proxy_stack": False,
        "qlora_max_skip_rate": None, "qlora_lm_head_only": False, "qlora_proxy_max_layers": None,
        "qlora_ce_last_k": 0, "curriculum_schedule": None,
    },
    "artifact": {
        "adapter_schema_version": 3, "allow_placeholder_attention_merge": True, "deployment_target": "workstation",
        "publish": True, "alias": None,
    },
    "device": {"device": "auto", "require_gpu": False, "allow_cpu_fallback": True},
    "trajectory": {
        "enabled": False, "tool_trace_boost": 1.1, "failure_category_boost": 1.15, "quality_floor": None,
        "quality_boost": 1.05,
    },
    "optimizer": {"kind": "adamw", "experiment": "off"},
    "curriculum": {"enabled": False},
    "chatml": {"im_start": None, "im_end": None, "role_system": None, "role_user": None, "role_assistant": None},
    "reward": {"hook": None},
    "method": {"type": "supervised"},
    "preference": {
        "loss": "sigmoid", "beta": None, "label_smoothing": 0.0, "smoothing": "conservative", "sft_weight": 0.0,
        "desirable_weight": None, "undesirable_weight": None, "reference": "auto",
    },
    "collateral_damage_verified": False,
}  # fmt: skip

BAD_VALUES: list[tuple[str, Any]] = [
    ("adapter.rank", True), ("adapter.rank", "16"), ("exec.learning_rate", True), ("exec.learning_rate", "1e-4"),
    ("exec.checkpoint_minutes", 0), ("exec.max_vram_fraction", True), ("data.context_filter", {"rating_min": True}),
    ("quant.double_quant", "no"), ("quant.double_quant", 1), ("device.require_gpu", "yes"),
    ("artifact.allow_placeholder_attention_merge", "false"),
    ("model.hf_repo", ""), ("model.hf_repo", None), ("model.hf_repo", "x" * 201),
    ("data.train_file", ""), ("data.train_file", None), ("data.tokenizer_mode", "bpe"),
    ("data.min_rating", -1), ("data.min_rating", 6), ("data.min_rating", 2.5),
    ("data.validation_split_ratio", -0.01), ("data.validation_split_ratio", 0.51),
    ("data.context_filter", {"difficulty_min": 0}), ("data.context_filter", {"difficulty_max": 11}),
    ("data.context_filter", {"rating_min": 0}), ("data.context_filter", {"rating_min": 6}),
    ("data.template_arguments", {"A": 1}), ("data.template_arguments", {"a": 1.5}), ("data.template_arguments", {"a": None}),
    ("data.template_arguments", {"a": "x" * 65}), ("data.template_arguments", dict.fromkeys("abcdefghi", True)),
    ("data.thoughts", "keep"), ("data.replay_ratio", -0.01), ("data.replay_ratio", 0.51), ("optimizer.kind", "adam"), ("optimizer.kind", None),
    ("adapter.method", "dora"), ("adapter.rank", 0), ("adapter.rank", 513), ("adapter.rank", 1.5),
    ("adapter.alpha", 0), ("adapter.alpha", 4097), ("adapter.dropout", -0.1), ("adapter.dropout", 1.0),
    ("adapter.targets", "everything"), ("adapter.target_modules", []), ("adapter.target_modules", "q_proj"),
    ("quant.base", "int8"), ("quant.double_quant", None),
    ("exec.epochs", 0), ("exec.epochs", 1001), ("exec.seq_len", 7), ("exec.seq_len", (1 << 20) + 1),
    ("exec.batch_size", 0), ("exec.batch_size", 4097), ("exec.grad_accum", 0), ("exec.grad_accum", 4097),
    ("exec.learning_rate", 0), ("exec.learning_rate", 1.1), ("exec.learning_rate", float("nan")),
    ("exec.learning_rate", float("inf")), ("exec.warmup_steps", -1), ("exec.warmup_steps", 1_000_001),
    ("exec.weight_decay", -0.1), ("exec.weight_decay", 1.1), ("exec.max_grad_norm", 0), ("exec.max_grad_norm", 1e7),
    ("exec.seed", -1), ("exec.seed", 2**31), ("exec.checkpoint_every", 0), ("exec.checkpoint_every", 10_000_001),
    ("exec.max_vram_fraction", 0), ("exec.max_vram_fraction", 1.1), ("exec.qlora_max_skip_rate", -0.1),
    ("exec.qlora_max_skip_rate", 1.1), ("exec.qlora_proxy_max_layers", -1), ("exec.qlora_ce_last_k", -1),
    ("exec.qlora_ce_last_k", 65), ("exec.adapter_tag", "Upper"), ("exec.adapter_tag", ""),
    ("exec.curriculum_schedule", {"epoch_1_max_difficulty": 11}),
    ("exec.curriculum_schedule", {"epoch_3_max_difficulty": 0}),
    ("artifact.adapter_schema_version", 2), ("artifact.adapter_schema_version", 4),
    ("artifact.deployment_target", "cloud"), ("artifact.alias", "../up"), ("artifact.alias", ".hidden"),
    ("data.context_filter", {"difficulty_min": 6, "difficulty_max": 5}),
    ("device.device", "tpu"), ("device.device", 0), ("device.require_gpu", "perhaps"),
    ("trajectory.tool_trace_boost", -0.1), ("trajectory.tool_trace_boost", float("inf")),
    ("trajectory.failure_category_boost", -1), ("trajectory.failure_category_boost", float("nan")),
    ("trajectory.quality_boost", -1), ("trajectory.quality_boost", float("-inf")), ("trajectory.quality_floor", 0),
    ("trajectory.quality_floor", 6), ("optimizer.experiment", "muon"), ("optimizer.experiment", None),
    ("curriculum.enabled", 2), ("chatml.im_start", ""), ("reward.hook", "rm -rf"), ("reward.hook", ""),
    ("artifact.alias", "a b"), ("artifact.alias", "a" * 65), ("artifact.alias", "line\n"), ("artifact.alias", "a@b"),
]  # fmt: skip

GOOD_EDGES: list[tuple[str, Any]] = [
    ("data.min_rating", 0), ("data.min_rating", 5), ("data.validation_split_ratio", 0.0),
    ("data.validation_split_ratio", 0.5), ("data.replay_ratio", 0.0), ("data.replay_ratio", 0.5), ("adapter.rank", 1), ("adapter.rank", 512), ("adapter.dropout", 0.99),
    ("exec.epochs", 1), ("exec.seq_len", 8), ("exec.learning_rate", 1.0), ("exec.warmup_steps", 0),
    ("trajectory.tool_trace_boost", 0.0), ("trajectory.quality_floor", 1), ("trajectory.quality_floor", 5),
    ("exec.seed", 2**31 - 1), ("exec.qlora_ce_last_k", 64), ("artifact.alias", "a" * 64), ("artifact.alias", "0.a-b_c"),
]  # fmt: skip


def with_value(path: str, value: Any) -> dict[str, Any]:
    """A complete contract's JSON, with one field set."""
    section, field = path.split(".")
    changed: dict[str, Any] = json.loads(json.dumps(DEFAULTS))
    changed[section][field] = value
    return changed


def part(kind: type, info: FieldInfo) -> Any:
    """The first type in a field's annotation that is a subclass of `kind`, or None."""
    found = [info.annotation, *get_args(info.annotation)]
    found += [argument for inner in found for argument in get_args(inner)]
    return next((item for item in found if isinstance(item, type) and issubclass(item, kind)), None)


def sections(model: type[BaseModel] = FineTuneContract, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every section of the contract, nested ones too."""
    yield path
    for name, info in model.model_fields.items():
        if section := part(ContractValue, info):
            yield from sections(section, (*path, name))


def another(info: FieldInfo, value: Any) -> Any:
    """A value of the field's type that is not its value."""
    if enum := part(StrEnum, info):
        return next(member for member in enum if member != value)
    if part(bool, info):
        return not value
    if part(int, info) or part(float, info):
        return (value or 0) + 1
    if "Mapping" in str(info.annotation):
        return {"another": True}
    if "tuple[" in str(info.annotation):
        return ("another",)
    return f"{value}-another"


def one_field_changed(model: BaseModel, path: str = "") -> Iterator[tuple[str, BaseModel]]:
    """Copies of a model, each with another value in one leaf. Nothing is validated: single-valued fields change too."""
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        if section := part(ContractValue, info):
            inner = section() if value is None else value
            for inner_path, changed in one_field_changed(inner, f"{path}{name}."):
                yield inner_path, model.model_copy(update={name: changed})
        else:
            yield f"{path}{name}", model.model_copy(update={name: another(info, value)})


CHANGED = dict(one_field_changed(contract()))
BY_CONTENT = {"model.hf_repo", "data.train_file", "data.validation_file", "data.replay_file", "adapter.continue_from"}


def digest(value: FineTuneContract) -> str:
    return contract_digest(value, CONTENT)


def test_defaults() -> None:
    assert contract().model_dump(mode="json") == DEFAULTS


@pytest.mark.parametrize("path", list(sections()), ids=".".join)
def test_unknown_key_is_refused_in_every_section(path: tuple[str, ...]) -> None:
    fields: dict[str, Any] = json.loads(json.dumps(DEFAULTS))
    section = fields
    for name in path:
        section[name] = section[name] or {}
        section = section[name]
    assert FineTuneContract.model_validate(fields)
    section["no_such_knob"] = 1
    with pytest.raises(ValidationError) as caught:
        FineTuneContract.model_validate(fields)
    assert [(error["type"], error["loc"]) for error in caught.value.errors()] == [
        ("extra_forbidden", (*path, "no_such_knob"))
    ]


def test_every_section_is_walked() -> None:
    assert {path[-1] for path in sections() if path} == {
        "model", "provenance", "data", "context_filter", "adapter", "quant", "exec", "curriculum_schedule", "artifact",
        "device", "trajectory", "optimizer", "curriculum", "chatml", "reward", "method", "preference",
    }  # fmt: skip


@pytest.mark.parametrize(("path", "value"), BAD_VALUES)
def test_bad_value_is_refused_at_its_field(path: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        FineTuneContract.model_validate(with_value(path, value))
    section, field = path.split(".")
    assert {error["loc"][:2] for error in caught.value.errors()} == {(section, field)}


def test_invalid_name_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValidationError) as caught:
        FineTuneContract.model_validate(with_value("artifact.alias", "Prod {v2}"))
    [fault] = caught.value.errors()
    assert fault["msg"] == describe_bad_name("Prod {v2}")
    assert fault["msg"].startswith("'Prod {v2}' is not a valid name: lower-case letters, digits")
    assert describe_bad_name("support-v2") is None, "the example is one"


@pytest.mark.parametrize(("path", "value"), GOOD_EDGES)
def test_value_at_the_edge_is_accepted(path: str, value: Any) -> None:
    section, field = path.split(".")
    assert getattr(getattr(FineTuneContract.model_validate(with_value(path, value)), section), field) == value


def test_data_is_required() -> None:
    with pytest.raises(ValidationError, match="data"):
        FineTuneContract.model_validate({key: value for key, value in DEFAULTS.items() if key != "data"})


@pytest.mark.parametrize("model", [{}, {"model": {}}])
def test_a_contract_without_a_model_has_the_default_one(model: dict[str, Any]) -> None:
    made = FineTuneContract.model_validate(model | {"data": {"train_file": "file-1"}})
    assert made.model.hf_repo == DEFAULT_MODEL_ID == "Qwen/Qwen3.5-4B"


@pytest.mark.parametrize(
    ("spelling", "device"),
    [
        ("", "cpu"), ("cpu", "cpu"), ("CPU", "cpu"), ("auto", "auto"), ("best", "auto"), ("Default", "auto"),
        ("vulkan", "auto"), ("dx12", "auto"), ("d3d12", "auto"), ("cuda", "cuda"), ("gpu", "cuda"),
        (" nvidia ", "cuda"), ("metal", "metal"), ("mps", "metal"),
    ],
)  # fmt: skip
def test_devices_have_many_names(spelling: str, device: str) -> None:
    made = contract(device={"device": spelling})
    assert made.device.device == device
    assert digest(made) == digest(contract(device={"device": device}))


def test_short_names_are_aliases() -> None:
    made = contract(model={"name": "tiny"}, adapter={"r": 8, "lora_alpha": 64})
    assert made == contract(model={"hf_repo": "tiny"}, adapter={"rank": 8, "alpha": 64})
    assert digest(made) == digest(contract(adapter={"rank": 8, "alpha": 64}))


@pytest.mark.parametrize("both", [{"rank": 8, "r": 4}, {"alpha": 8, "lora_alpha": 4}])
def test_name_and_alias_together_are_refused(both: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        AdapterSection.model_validate(both)


def test_contract_is_frozen() -> None:
    with pytest.raises(ValidationError):
        contract().exec.epochs = 4


@given(
    rank=st.integers(1, 512),
    rate=st.floats(1e-12, 1.0),
    ratio=st.floats(0.0, 0.5),
    shards=st.none() | st.lists(st.text(max_size=5), max_size=3),
    alias=st.none() | st.from_regex(r"\A[a-z0-9][a-z0-9._-]{0,63}\Z"),
)
def test_json_round_trip_keeps_value_and_digest(
    rank: int, rate: float, ratio: float, shards: list[str] | None, alias: str | None
) -> None:
    made = contract(
        model={"hf_repo": "tiny", "weight_shards": shards},
        data={"train_file": "file-1", "validation_split_ratio": ratio},
        adapter={"rank": rank},
        exec={"learning_rate": rate},
        artifact={"alias": alias},
    )
    copy = FineTuneContract.model_validate_json(made.model_dump_json())
    assert copy == made
    assert digest(copy) == digest(made)


def test_walk_reaches_every_leaf() -> None:
    leaves = {f"{section}.{field}" for section, fields in DEFAULTS.items() if section != "collateral_damage_verified"
              for field in fields} - {"data.context_filter", "exec.curriculum_schedule"}  # fmt: skip
    leaves |= {f"data.context_filter.{name}" for name in ContextFilter.model_fields}
    leaves |= {f"exec.curriculum_schedule.{name}" for name in CurriculumSchedule.model_fields}
    assert CHANGED.keys() == leaves | {"collateral_damage_verified"}


@pytest.mark.parametrize("path", sorted(CHANGED.keys() - BY_CONTENT))
def test_digest_changes_with_every_knob(path: str) -> None:
    assert digest(CHANGED[path]) != digest(contract())


@pytest.mark.parametrize("path", sorted(BY_CONTENT))
def test_digest_does_not_change_with_names_of_content(path: str) -> None:
    assert CHANGED[path] != contract()
    assert digest(CHANGED[path]) == digest(contract())


@pytest.mark.parametrize("role", ["train_file", "base", "validation_file", "replay_file", "parent"])
def test_digest_changes_with_content(role: str) -> None:
    assert contract_digest(contract(), CONTENT | {role: "e" * 64}) != digest(contract())


@given(st.permutations(["shard-1", "shard-2", "shard-3"]))
def test_digest_does_not_change_with_shard_order(shards: list[str]) -> None:
    made = contract(model={"hf_repo": "tiny", "weight_shards": shards})
    assert digest(made) == digest(contract(model={"hf_repo": "tiny", "weight_shards": sorted(shards)}))
    assert digest(made) != digest(contract())


def test_template_arguments_are_a_value_whose_order_means_nothing() -> None:
    """And without any the digest is that of a contract of the release before, which knew none."""
    given = {"reasoning_effort": "low", "enable_thinking": False}
    made, other = (
        contract(data={"train_file": "file-1", "template_arguments": value})
        for value in (given, dict(sorted(given.items())))
    )
    assert (digest(made), made.model_dump_json()) == (digest(other), other.model_dump_json())
    assert FineTuneContract.model_validate_json(made.model_dump_json()) == made
    assert (
        digest(contract(data={"train_file": "file-1", "template_arguments": {}, "thoughts": "learn"})) == GOLDEN_DIGEST
    )
    with pytest.raises(TypeError):
        made.data.template_arguments["a"] = 1
    assert copy.deepcopy(made) == made


def test_golden_digest() -> None:
    assert digest(contract()) == GOLDEN_DIGEST, "digests are stored with jobs and adapters: a change orphans them"


def test_published_schema_is_the_golden_one() -> None:
    schema = json.dumps(FineTuneContract.model_json_schema(), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("MENS_UPDATE_GOLDEN") == "1":
        GOLDEN_SCHEMA.write_text(schema, encoding="utf-8")
    assert schema == GOLDEN_SCHEMA.read_text(encoding="utf-8"), (
        "The contract's JSON Schema has changed. If clients may see this change, refresh the golden file with "
        "MENS_UPDATE_GOLDEN=1 pytest tests/shared/contract/test_sections.py and commit it."
    )


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", "float16"])
def test_merge_contract_accepts_stored_dtypes(dtype: str | None) -> None:
    assert MergeContract.model_validate({"adapter": "demo@1", "dtype": dtype}).dtype == dtype


@pytest.mark.parametrize("fields", [{}, {"adapter": ""}, {"adapter": "a", "dtype": "int8"}, {"adapter": "a", "x": 1}])
def test_bad_merge_contract_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MergeContract.model_validate(fields)
