"""The merge: the same logits without an adapter, a folder that every reader accepts, and verified inputs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from shared.artifacts.manifests import (
    MANIFEST_NAME,
    MODEL_MANIFEST_NAME,
    WEIGHTS_NAME,
    ManifestQuant,
    ModelManifest,
    parse_manifest,
)
from shared.artifacts.merge_fidelity import FIDELITY_NAME, PROBES_NAME, MergeFidelity, MergeProbes
from shared.base_models.weights import read_folder_tensors
from shared.contract.contracts import MergeContract
from shared.contract.plan import MergeInputs, MergePlan, MergeRun, PlannedBase
from shared.errors import ArtifactInvalid, Code, ContractRejected, InvalidRequest, JobFailed
from shared.hashing import digest_file
from worker.child_runtime import EXIT_FAILED
from worker.dequantize import write_twin
from worker.merge import merge, training_weights
from worker.merging.fidelity import LIMITS, divergence, probe_ids
from worker.merging.model_folder import FolderMerge
from worker.run_folder import ERROR_NAME, PLAN_NAME, SUMMARY_NAME, read_json

IDS = torch.randint(300, 2000, (2, 24), generator=torch.Generator().manual_seed(0))


def merge_run(
    adapter: Path,
    base: Path,
    digests: dict[str, str],
    dtype: str | None = None,
    digest: str = "",
    base_weights: str = "original",
    max_kl_nats: float | None = None,
) -> MergeRun:
    digest = digest or digest_file(adapter / MANIFEST_NAME)
    plan = MergePlan(
        contract=MergeContract(adapter="tiny", dtype=dtype, base_weights=base_weights, max_kl_nats=max_kl_nats),
        adapter_id=f"tiny@{digest}",
        adapter_digest=digest,
        base=PlannedBase(name="tiny-qwen3", digests=digests),
    )
    return MergeRun(plan=plan, inputs=MergeInputs(base=str(base), adapter=str(adapter)))


@pytest.fixture(scope="module")
def adapter(finished) -> Path:
    return finished.run_dir / "adapter"


@pytest.fixture(scope="module")
def merged(adapter, tiny, tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("merge")
    merge(merge_run(adapter, tiny.base, tiny.entry.digests), run_dir)
    return run_dir


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


def test_merged_logits_are_those_of_base_and_adapter(merged, adapter, tiny):
    base = AutoModelForCausalLM.from_pretrained(tiny.base, dtype=torch.float32)
    plain = logits(base)
    tuned = logits(PeftModel.from_pretrained(base, adapter))
    alone = logits(AutoModelForCausalLM.from_pretrained(merged / "model", dtype=torch.float32))
    assert (tuned - plain).abs().max() > 0.1
    assert torch.allclose(alone, tuned, atol=1e-4, rtol=1e-5)
    assert ((alone - tuned).norm() / tuned.norm()).item() < 1e-5


def test_merged_weight_is_w_plus_scaled_b_a(merged, adapter, tiny):
    from safetensors.torch import load_file

    key = "model.layers.1.mlp.down_proj"
    base, new = load_file(tiny.base / "model.safetensors"), load_file(merged / "model" / "model.safetensors")
    lora = load_file(adapter / WEIGHTS_NAME)
    a, b = (lora[f"base_model.model.{key}.lora_{side}.weight"] for side in "AB")
    expected = base[f"{key}.weight"] + (b @ a) * (8 / 4)
    assert torch.allclose(new[f"{key}.weight"], expected, atol=1e-6)
    assert torch.equal(new["model.embed_tokens.weight"], base["model.embed_tokens.weight"])


def test_folder_is_complete_and_has_the_bases_tensors(merged, tiny):
    folder = merged / "model"
    base_names = {path.name for path in tiny.base.iterdir()}
    assert base_names <= {path.name for path in folder.iterdir()}
    assert read_folder_tensors(folder) == read_folder_tensors(tiny.base)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (tiny.base / name).read_bytes()
    ours, theirs = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(tiny.base)
    assert ours.encode("A bug is a mistake.") == theirs.encode("A bug is a mistake.")
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())


def test_manifest_and_summary_name_every_file(merged, tiny, adapter):
    folder = merged / "model"
    manifest = ModelManifest.model_validate_json((folder / MODEL_MANIFEST_NAME).read_bytes())
    present = {path.name for path in folder.iterdir()} - {MODEL_MANIFEST_NAME, FIDELITY_NAME, PROBES_NAME}
    assert manifest.files == {name: digest_file(folder / name) for name in present}
    assert manifest.base_digests == tiny.entry.digests
    assert manifest.adapter_id == f"tiny@{digest_file(adapter / MANIFEST_NAME)}"
    summary = read_json(merged / SUMMARY_NAME)
    assert summary["model_digest"] == digest_file(folder / MODEL_MANIFEST_NAME)
    assert summary["files"] == sorted(present)


def test_same_inputs_give_the_same_bytes(merged, adapter, tiny, tmp_path):
    merge(merge_run(adapter, tiny.base, tiny.entry.digests), tmp_path)
    names = {path.name for path in (merged / "model").iterdir()} - {FIDELITY_NAME, PROBES_NAME}
    assert {path.name for path in (tmp_path / "model").iterdir()} == names | {FIDELITY_NAME, PROBES_NAME}
    for name in names:
        assert digest_file(tmp_path / "model" / name) == digest_file(merged / "model" / name), name


def test_bfloat16_is_the_rounded_merge(merged, adapter, tiny, tmp_path):
    merge(merge_run(adapter, tiny.base, tiny.entry.digests, dtype="bfloat16"), tmp_path)
    assert {info.dtype for info in read_folder_tensors(tmp_path / "model").values()} == {"BF16"}
    small = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16).state_dict()
    exact = AutoModelForCausalLM.from_pretrained(merged / "model", dtype=torch.float32).state_dict()
    assert all(torch.equal(small[key], exact[key].bfloat16()) for key in exact)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_weights_of_training_are_those_of_the_twin(merged, adapter, tiny, tmp_path):
    write_twin(tiny.base, tmp_path / "twin")
    manifest = parse_manifest((adapter / MANIFEST_NAME).read_bytes(), digest_file(adapter / MANIFEST_NAME))
    onto_twin = FolderMerge(tmp_path / "twin", adapter, manifest, tmp_path / "expected" / "model").run("")
    run = merge_run(adapter, tiny.base, tiny.entry.digests, base_weights="dequant_nf4")
    found = merge(run, tmp_path)
    assert found.files == onto_twin
    assert found.base_weights == "dequant_nf4"
    assert digest_file(tmp_path / "model" / "model.safetensors") != digest_file(merged / "model" / "model.safetensors")


def test_an_adapter_trained_on_full_precision_has_no_other_weights(adapter, tiny):
    manifest = parse_manifest((adapter / MANIFEST_NAME).read_bytes(), digest_file(adapter / MANIFEST_NAME))
    plain = manifest.model_copy(update={"quant": ManifestQuant(base_quant="none")})
    with pytest.raises(ContractRejected) as error:
        training_weights(tiny.base, plain)
    assert (error.value.code, error.value.param) == (Code.CONTRACT_UNSUPPORTED, "base_weights")


def fidelity(run_dir: Path) -> MergeFidelity:
    return MergeFidelity.model_validate_json((run_dir / "model" / FIDELITY_NAME).read_bytes())


def test_fidelity_is_what_whole_models_say(merged, adapter, tiny):
    """The streamed models against transformers and peft in memory, on the same probes."""
    found, probes = fidelity(merged), probe_ids(tiny.base)
    with torch.no_grad():
        base = AutoModelForCausalLM.from_pretrained(tiny.base, dtype=torch.float32).eval()
        plain = [base(torch.tensor([ids])).logits[0] for ids in probes]
        both = PeftModel.from_pretrained(base, adapter).eval()
        tuned = [both(torch.tensor([ids])).logits[0] for ids in probes]
    expected = divergence(plain, tuned)
    assert found.effect.mean_kl_nats == pytest.approx(expected.mean_kl_nats, rel=1e-4)
    assert found.effect.max_logit_difference == pytest.approx(expected.max_logit_difference, rel=1e-4)
    assert found.positions == sum(map(len, probes)) > 100
    assert found.model_digest == digest_file(merged / "model" / MODEL_MANIFEST_NAME)
    assert found.adapter_divergence.mean_kl_nats < 1e-9 < found.limit_nats < found.effect.mean_kl_nats
    assert read_json(merged / SUMMARY_NAME)["fidelity"] == found.model_dump(mode="json")


def test_probes_are_what_whole_models_say_of_each_token(merged, adapter, tiny):
    """Replicas are compared with the scores of the merged model and of the base, for the last tokens of the probe
    chats.
    """
    recorded = MergeProbes.model_validate_json((merged / "model" / PROBES_NAME).read_bytes())
    assert recorded.model_digest == digest_file(merged / "model" / MODEL_MANIFEST_NAME)
    assert [probe.token_ids for probe in recorded.probes] == probe_ids(tiny.base)
    for folder, scored in ((merged / "model", "merged"), (tiny.base, "base")):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for probe in recorded.probes:
            ids = torch.tensor([probe.token_ids])
            with torch.no_grad():
                expected = model(ids).logits[0].log_softmax(-1)
            found = getattr(probe, scored)
            assert probe.positions == list(range(1, len(probe.token_ids))) and len(found) == len(probe.positions)
            for at, score in zip(probe.positions, found, strict=True):
                assert score == pytest.approx(float(expected[at - 1, ids[0, at]]), abs=1e-4)


def test_fidelity_names_the_distance_from_what_training_saw(merged, adapter, tiny, tmp_path):
    assert fidelity(merged).training_divergence.mean_kl_nats > 1e-3
    merge(merge_run(adapter, tiny.base, tiny.entry.digests, base_weights="dequant_nf4"), tmp_path)
    found = fidelity(tmp_path)
    assert found.training_divergence == found.adapter_divergence
    assert found.adapter_divergence.mean_kl_nats < 1e-9


def test_a_merge_past_its_limit_fails_with_its_numbers(adapter, tiny, tmp_path):
    run = merge_run(adapter, tiny.base, tiny.entry.digests, dtype="bfloat16", max_kl_nats=1e-9)
    with pytest.raises(JobFailed) as failed:
        merge(run, tmp_path)
    assert (failed.value.code, failed.value.param) == (Code.MERGE_FIDELITY_FAILED, "max_kl_nats")
    numbers = failed.value.details["fidelity"]
    assert (numbers["dtype"], numbers["limit_nats"]) == ("bfloat16", 1e-9)
    assert 1e-9 < numbers["adapter_divergence"]["mean_kl_nats"] < LIMITS["bfloat16"]
    assert not (tmp_path / SUMMARY_NAME).exists()


def test_a_merge_that_left_the_adapter_out_is_refused(adapter, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(FolderMerge, "_product", lambda *_: None)
    with pytest.raises(JobFailed) as failed:
        merge(merge_run(adapter, tiny.base, tiny.entry.digests, dtype="bfloat16"), tmp_path)
    assert failed.value.code == Code.MERGE_FIDELITY_FAILED


def refused(run: MergeRun, run_dir: Path) -> Code:
    with pytest.raises((ArtifactInvalid, InvalidRequest)) as error:
        merge(run, run_dir)
    assert error.value.remedy
    assert not (run_dir / "model").exists()
    return error.value.code


@pytest.mark.parametrize("name", ["adapter_model.bin", "step_3.BIN"])
def test_pickle_is_refused_before_anything_is_parsed(tiny, tmp_path, name):
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / name).write_bytes(b"\x80\x04not even pickle")
    (folder / MANIFEST_NAME).write_bytes(b"not even JSON")
    assert refused(merge_run(folder, tiny.base, tiny.entry.digests), tmp_path) == Code.MERGE_REJECTS_BURN_BIN


@pytest.mark.parametrize("name", [WEIGHTS_NAME, MANIFEST_NAME, "adapter_config.json"])
def test_tampered_adapter_is_refused(adapter, tiny, tmp_path, name):
    folder = shutil.copytree(adapter, tmp_path / "adapter")
    raw = bytearray((folder / name).read_bytes())
    raw[-3] ^= 1
    (folder / name).write_bytes(raw)
    run = merge_run(folder, tiny.base, tiny.entry.digests, digest=digest_file(adapter / MANIFEST_NAME))
    assert refused(run, tmp_path) == Code.ADAPTER_DIGEST_MISMATCH


def test_base_of_another_plan_is_refused(adapter, tiny, tmp_path):
    digests = tiny.entry.digests | {"config.json": "0" * 64}
    assert refused(merge_run(adapter, tiny.base, digests), tmp_path) == Code.ADAPTER_BASE_MISMATCH


def test_another_model_of_the_same_shape_is_refused(adapter, tiny_llama, tmp_path):
    run = merge_run(adapter, tiny_llama.base, tiny_llama.entry.digests)
    assert refused(run, tmp_path) == Code.ADAPTER_BASE_MISMATCH


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "chat_template.jinja"])
def test_tampered_base_is_refused(adapter, tiny, tmp_path, name):
    base = shutil.copytree(tiny.base, tmp_path / "base")
    raw = bytearray((base / name).read_bytes())
    raw[-3] ^= 1
    (base / name).write_bytes(raw)
    assert refused(merge_run(adapter, base, tiny.entry.digests), tmp_path) == Code.MERGE_BASE_DIGEST_MISMATCH


def test_missing_base_file_is_refused(adapter, tiny, tmp_path):
    base = shutil.copytree(tiny.base, tmp_path / "base")
    (base / "generation_config.json").unlink()
    assert refused(merge_run(adapter, base, tiny.entry.digests), tmp_path) == Code.MERGE_BASE_DIGEST_MISMATCH


def test_llama_merges_too(tiny_llama, tmp_path):
    run = tiny_llama.plan_run(tmp_path, exec={"epochs": 1})
    adapter = tiny_llama.train(run, tmp_path / "run") / "adapter"
    merge(merge_run(adapter, tiny_llama.base, tiny_llama.entry.digests), tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tiny_llama.base, dtype=torch.float32)
    tuned = logits(PeftModel.from_pretrained(base, adapter))
    alone = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32))
    assert ((alone - tuned).norm() / tuned.norm()).item() < 1e-5


@pytest.mark.long
def test_the_process_reports_a_refusal_in_its_error_file(adapter, tiny, tmp_path):
    """The tests above check refusals in this process; `test_child_runtime.py` tests how a process reports an error."""
    run = merge_run(adapter, tiny.base, tiny.entry.digests | {"config.json": "0" * 64})
    (tmp_path / PLAN_NAME).write_text(run.model_dump_json())
    command = [sys.executable, "-m", "worker.merge", str(tmp_path / PLAN_NAME), str(tmp_path)]
    environment = {key: value for key, value in os.environ.items() if key != "MENS_PARENT_PID"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == EXIT_FAILED, done.stderr.decode()
    assert read_json(tmp_path / ERROR_NAME)["code"] == Code.ADAPTER_BASE_MISMATCH
