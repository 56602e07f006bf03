"""Import of PEFT folders from elsewhere: the same product with one rank and one scale, or the option that prevents it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import shared.artifacts.peft_options as options_module
from shared.artifacts.adapter_import import import_adapter, parse_description
from shared.artifacts.imported_folder import Imported, ImportRequest
from shared.artifacts.manifests import CONFIG_NAME, WEIGHTS_NAME, peft_keys, verify_adapter
from shared.artifacts.peft_options import ModuleMatcher, PeftOptions
from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.base_models.weights import read_folder_tensors
from shared.errors import ArtifactInvalid, Code
from tests.support.peft_folder import PREFIX, TORCHTUNE, PeftFolder, make_patterned, make_torchtune
from tests.support.tiny_base import write_base

ZEROS = "0" * 64
MODULE = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("bases") / "tiny", head_dim=24)


def take_in(folder: Path, base: Path, target: Path) -> Imported:
    request = ImportRequest(
        weights=folder / WEIGHTS_NAME,
        sidecar=parse_description((folder / CONFIG_NAME).read_bytes()),
        base=BaseModelEntry(name="tiny", source=LocalSource(path=str(base)), digests=digest_model_folder(base)),
        base_folder=base,
        name="theirs",
        sidecar_digest=ZEROS,
        contract_digest=ZEROS,
        template_digest=ZEROS,
    )
    return import_adapter(request, target)


def test_patterns_and_rslora_become_one_rank_and_one_scale(base: Path, tmp_path: Path) -> None:
    made = make_patterned(base)
    found = take_in(made.write(tmp_path / "theirs"), base, tmp_path / "ours")
    manifest, weights = found.manifest, load_file(tmp_path / "ours" / WEIGHTS_NAME)
    assert (manifest.rank, manifest.alpha) == (5, 5)
    assert len(manifest.base_key_map) == len(made.layers)
    for module, (a, b, scale) in made.layers.items():
        ours_a, ours_b = (weights[name] for name in peft_keys(f"{module}.weight"))
        assert ours_a.shape[0] == ours_b.shape[1] == 5
        expected = np.float64(scale) * (b.astype(np.float64) @ a.astype(np.float64))
        assert np.abs(ours_b.astype(np.float64) @ ours_a - expected).max() < 1e-6
    assert any("Ranks or scales differ" in note for note in found.notes)
    verify_adapter(tmp_path / "ours", manifest, read_folder_tensors(base))


def test_a_plain_adapter_keeps_every_number(base: Path, tmp_path: Path) -> None:
    made = make_torchtune(base)
    found = take_in(made.write(tmp_path / "theirs"), base, tmp_path / "ours")
    assert (found.manifest.rank, found.manifest.alpha) == (4, 8)
    assert found.manifest.base_key_map["l0.q"] == f"{MODULE}.weight"
    ours = load_file(tmp_path / "ours" / WEIGHTS_NAME)
    assert ours.keys() == made.tensors().keys()
    assert all(np.array_equal(ours[name], value) for name, value in made.tensors().items())
    assert (found.manifest.adapter_method, found.manifest.quant.base_quant) == ("lora", "none")
    assert len(found.notes) == 1


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_sixteen_bits_become_the_same_values_in_float32(base: Path, tmp_path: Path, dtype: str) -> None:
    made = make_torchtune(base)
    folder = made.write(tmp_path / "theirs")
    header, data, values = {}, b"", {}
    for name, value in made.tensors().items():
        # bfloat16 is the upper half of a float32.
        raw = value.astype("<f2") if dtype == "F16" else (value.view("<u4") >> 16).astype("<u2")
        values[name] = raw.astype("<f4") if dtype == "F16" else (raw.astype("<u4") << 16).view("<f4")
        header[name] = {"dtype": dtype, "shape": value.shape, "data_offsets": [len(data), len(data) + raw.nbytes]}
        data += raw.tobytes()
    text = json.dumps(header).encode()
    (folder / WEIGHTS_NAME).write_bytes(struct.pack("<Q", len(text)) + text + data)
    take_in(folder, base, tmp_path / "ours")
    ours = load_file(tmp_path / "ours" / WEIGHTS_NAME)
    assert all(np.array_equal(ours[name], value) for name, value in values.items())


def test_a_composite_models_names_lead_to_the_same_tensors(tmp_path: Path) -> None:
    """Unsloth trains a Qwen3.5 as the vision-language class that it is stored as, others as the text-only one."""
    text = json.loads((write_base(tmp_path / "plain") / "config.json").read_text())
    linear = {
        "model_type": "qwen3_5_text", "layer_types": ["full_attention", "full_attention"], "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
    }  # fmt: skip
    composite = {
        "model_type": "qwen3_5",
        "text_config": text | linear,
        "architectures": ["Qwen3_5ForConditionalGeneration"],
    }
    base = write_base(tmp_path / "base", **composite)
    made = make_torchtune(base)
    digests = set()
    for number, namespace in enumerate(("model.language_model.", "model.")):
        layers = {module.replace("model.language_model.", namespace): one for module, one in made.layers.items()}
        folder = PeftFolder(made.options, layers).write(tmp_path / f"theirs-{number}")
        manifest = take_in(folder, base, tmp_path / f"ours-{number}").manifest
        assert manifest.base_key_map["l0.q"] == "model.language_model.layers.0.self_attn.q_proj.weight"
        digests.add(manifest.files[WEIGHTS_NAME])
    assert len(digests) == 1


Change = Callable[[PeftFolder], None]


def with_options(**changes: Any) -> Change:
    def change(made: PeftFolder) -> None:
        made.options |= changes

    return change


def with_tensor(name: str) -> Change:
    def change(made: PeftFolder) -> None:
        made.more[name] = np.ones((4, 4), np.float32)

    return change


def without_b(made: PeftFolder) -> None:
    a, _, _ = made.layers.pop(MODULE)
    made.more[f"{PREFIX}{MODULE}.lora_A.weight"] = a


def moved(module: str) -> Change:
    def change(made: PeftFolder) -> None:
        made.layers[module] = made.layers.pop(MODULE)

    return change


def with_head(made: PeftFolder) -> None:
    made.layers["lm_head"] = np.ones((4, 32), np.float32), np.ones((258, 4), np.float32), 2.0
    made.options["target_modules"] = ["q_proj", "down_proj", "lm_head"]


def not_finite(made: PeftFolder) -> None:
    made.layers[MODULE][1][0, 0] = np.inf


def without(*ends: str) -> Change:
    def change(made: PeftFolder) -> None:
        made.layers = {module: one for module, one in made.layers.items() if not module.endswith(ends)}

    return change


def second_adapter(made: PeftFolder) -> None:
    made.more = {
        name.replace(".weight", ".other.weight"): value for name, value in made.tensors().items() if MODULE in name
    }


def twice(made: PeftFolder) -> None:
    made.more = {name.replace(PREFIX, f"module.{PREFIX}"): value for name, value in made.tensors().items()}


NOT_SERVABLE, INCOMPLETE, FORMAT = Code.ADAPTER_NOT_SERVABLE, Code.ADAPTER_IMPORT_INCOMPLETE, Code.ADAPTER_IMPORT_FORMAT
REFUSED: list[tuple[Change, Code, str]] = [
    (with_options(use_dora=True), NOT_SERVABLE, "use_dora"),
    (with_options(bias="lora_only"), NOT_SERVABLE, "bias"),
    (with_options(lora_bias=True), NOT_SERVABLE, "lora_bias"),
    (with_options(modules_to_save=["embed_tokens"]), NOT_SERVABLE, "modules_to_save"),
    (with_options(fan_in_fan_out=True), NOT_SERVABLE, "fan_in_fan_out"),
    (with_options(init_lora_weights="pissa"), NOT_SERVABLE, "init_lora_weights"),
    (with_options(trainable_token_indices=[1]), NOT_SERVABLE, "trainable_token_indices"),
    (with_options(of_the_next_release=True), NOT_SERVABLE, "of_the_next_release"),
    (with_options(task_type="SEQ_CLS"), NOT_SERVABLE, "task_type"),
    (with_options(peft_type="IA3"), NOT_SERVABLE, "peft_type"),
    (with_tensor(f"{PREFIX}model.embed_tokens.weight"), NOT_SERVABLE, f"{PREFIX}model.embed_tokens.weight"),
    (with_tensor(f"{PREFIX}{MODULE}.lora_magnitude_vector.weight"), NOT_SERVABLE, f"{PREFIX}{MODULE}.lora_magnitude_vector.weight"),
    (with_head, Code.NOT_SERVABLE_HEAD, "lm_head"),
    (without_b, INCOMPLETE, MODULE),
    (moved("model.layers.7.self_attn.q_proj"), INCOMPLETE, "model.layers.7.self_attn.q_proj"),
    (moved("model.vision.q_proj"), INCOMPLETE, "model.vision.q_proj"),
    (with_options(target_modules=["down_proj"]), INCOMPLETE, MODULE),
    (with_options(target_modules=r".*\.down_proj"), INCOMPLETE, MODULE),
    (with_options(exclude_modules=["q_proj"]), INCOMPLETE, MODULE),
    (with_options(layers_to_transform=[1]), INCOMPLETE, "model.layers.0.mlp.down_proj"),
    (with_options(target_modules=["q_proj", "down_proj", "k_proj"]), INCOMPLETE, "model.layers.0.self_attn.k_proj"),
    (with_options(target_modules=["q_proj", "down_proj", "lm_head"]), INCOMPLETE, "lm_head"),
    (without("down_proj"), INCOMPLETE, "model.layers.0.mlp.down_proj"),
    (without("1.self_attn.q_proj", "1.mlp.down_proj"), INCOMPLETE, "model.layers.1.self_attn.q_proj"),
    (without("_proj"), INCOMPLETE, MODULE),
    (second_adapter, NOT_SERVABLE, f"{PREFIX}{MODULE}.lora_A.other.weight"),
    (twice, INCOMPLETE, "model.layers.0.mlp.down_proj"),
    (with_tensor(f"teacher.{PREFIX}{MODULE}.lora_A.weight"), INCOMPLETE, f"teacher.{PREFIX}{MODULE}"),
    (with_options(target_modules="(("), FORMAT, "target_modules"),
    (with_options(exclude_modules="(("), FORMAT, "exclude_modules"),
    (with_options(layers_to_transform=[0, 1], layers_pattern="(("), FORMAT, "layers_pattern"),
    (with_options(layers_pattern="layers"), FORMAT, "the top level"),
    (with_options(target_modules="all-linear", layers_to_transform=1), FORMAT, "the top level"),
    (with_options(r=0), FORMAT, "r"),
    (with_options(lora_alpha=float("nan")), FORMAT, "lora_alpha"),
    (with_options(rank_pattern={"q_proj": 100_000}), FORMAT, "rank_pattern.q_proj"),
    (with_options(r=8), Code.ADAPTER_SHAPE_MISMATCH, "model.layers.0.mlp.down_proj"),
    (not_finite, Code.ADAPTER_VALUES_INVALID, f"{PREFIX}{MODULE}.lora_B.weight"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "code", "param"), REFUSED)
def test_what_would_be_served_otherwise_is_refused(
    base: Path, tmp_path: Path, change: Change, code: Code, param: str
) -> None:
    made = make_torchtune(base)
    change(made)
    with pytest.raises(ArtifactInvalid) as refused:
        take_in(made.write(tmp_path / "theirs"), base, tmp_path / "ours")
    assert (refused.value.code, refused.value.param) == (code, param)
    assert refused.value.remedy
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (without("down_proj"), "Import the complete weights."),
        (without_b, "save_pretrained of the unwrapped PEFT model"),
        (moved("model.vision.q_proj"), "the base that it was trained on"),
        (with_options(target_modules=["down_proj"]), "adapter_config.json that was written with them"),
        (second_adapter, "selected_adapters"),
        (with_tensor(f"{PREFIX}{MODULE}.lora_magnitude_vector.weight"), "without DoRA"),
        (with_tensor(f"{PREFIX}{MODULE}.lora_B.bias"), "without biases"),
        (with_tensor(f"{PREFIX}model.embed_tokens.weight"), "without embeddings"),
        (with_tensor(f"{PREFIX}lm_head.weight"), "without embeddings"),
        (with_tensor(f"{PREFIX}{MODULE}.ada_A"), "save_pretrained of the unwrapped PEFT model"),
    ],
)
def test_remedy_fits_its_cause(base: Path, tmp_path: Path, change: Change, remedy: str) -> None:
    made = make_torchtune(base)
    change(made)
    with pytest.raises(ArtifactInvalid) as refused:
        take_in(made.write(tmp_path / "theirs"), base, tmp_path / "ours")
    assert remedy in (refused.value.remedy or "")
    assert "sidecar" not in (refused.value.remedy or "")


WRAPPED: dict[str, Callable[[str], str]] = {
    ".default": lambda name: name.replace(".weight", ".default.weight"),
    "module": lambda name: f"module.{name}",
    "_orig_mod": lambda name: name.replace(PREFIX, f"{PREFIX}_orig_mod."),
    "_checkpoint_wrapped_module": lambda name: name.replace("layers.0.", "layers.0._checkpoint_wrapped_module."),
    "_fsdp_wrapped_module": lambda name: f"_fsdp_wrapped_module.{name}".replace(".q_proj.", ".q_proj._fsdp_wrapped_module."),
    "2 times base_model.model": lambda name: f"{PREFIX}{name}",
    "0 times base_model.model": lambda name: name.removeprefix(PREFIX),
}  # fmt: skip


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_names_of_a_wrapped_model_are_read_and_noted(base: Path, tmp_path: Path, wrapper: str) -> None:
    made = make_torchtune(base)
    plain = take_in(made.write(tmp_path / "plain"), base, tmp_path / "first")
    made.more, made.layers = {WRAPPED[wrapper](name): value for name, value in made.tensors().items()}, {}
    found = take_in(made.write(tmp_path / "wrapped"), base, tmp_path / "second")
    assert found.manifest.files == plain.manifest.files
    assert [note for note in found.notes if note not in plain.notes] == [
        f"The names of the weights are not PEFT's own ({wrapper}); they were read as PEFT's."
    ]


def test_an_untrained_head_is_left_out(base: Path, tmp_path: Path) -> None:
    made = make_torchtune(base)
    with_head(made)
    made.layers["lm_head"][1][:] = 0
    found = take_in(made.write(tmp_path / "theirs"), base, tmp_path / "ours")
    assert "lm_head" not in found.manifest.base_key_map
    assert any(note.startswith("lm_head: its B is all zeros") for note in found.notes)


def test_an_expression_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options_module, "MATCH_SECONDS", 0.05)
    options = PeftOptions.model_validate(TORCHTUNE | {"target_modules": "(a|aa)+"})
    with pytest.raises(ArtifactInvalid, match="take longer") as refused:
        ModuleMatcher(options).is_target("a" * 60 + ".b")
    assert refused.value.code == FORMAT


@pytest.mark.parametrize(
    ("targets", "module", "is_target"),
    [
        ("all-linear", MODULE, True),
        ("all-linear", "lm_head", False),
        (["self_attn.q_proj"], MODULE, True),
        (["_proj"], MODULE, False),
        ([MODULE], MODULE, True),
        (r"model\.layers\.\d+\.self_attn\.q_proj", MODULE, True),
        (r"layers\.\d+\.self_attn\.q_proj", MODULE, False),
    ],
)
def test_targets_are_matched_as_peft_does(targets: Any, module: str, is_target: bool) -> None:
    options = PeftOptions.model_validate(TORCHTUNE | {"target_modules": targets})
    assert ModuleMatcher(options).is_target(module) is is_target
