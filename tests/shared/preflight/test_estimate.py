"""The estimate compared with reality: real NF4 weights, real adapters, real files, and the tensors that autograd really
saves.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.base_models.config import ModelConfig, parse_model_config
from shared.base_models.families import SPECS
from shared.base_models.tensors import linear_layers
from shared.contract.plan import optimizer_steps
from shared.preflight.activations import Recompute, activation_bytes
from shared.preflight.estimate import RUNTIME_BYTES, VRAM_FRACTION, estimate, nearest_fit, vram_parts
from shared.preflight.memory import (
    CHUNK_ELEMENTS,
    adapter_file_bytes,
    checkpoint_bytes,
    chunk_rows,
    lora_tensors,
    merged_bytes,
    nf4_bytes,
    optimizer_state_bytes,
    unquantised_bytes,
)
from shared.preflight.types import Configuration, Machine
from tests.support.builders import contract
from tests.support.tiny_models import RAW, quantised, save, with_lora

RANK = 4
QWEN3_8B = parse_model_config(
    {
        "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
        "max_position_embeddings": 40960, "dtype": "bfloat16",
    }
)  # fmt: skip
GIB = 1 << 30


def config_of(name: str, **changes: Any) -> ModelConfig:
    return parse_model_config(RAW[name] | changes)


def tensor_bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.torch
@pytest.mark.parametrize("double_quant", [True, False])
@pytest.mark.parametrize("name", RAW)
def test_weights_in_memory_are_exact(name: str, double_quant: bool, tmp_path: Path) -> None:
    """Every byte of the model that bitsandbytes and transformers hold, in bf16 compute."""
    import torch
    from bitsandbytes.nn import Params4bit

    model, config = quantised(RAW[name], tmp_path, torch.bfloat16, double_quant=double_quant), config_of(name)
    packed, others = [], []
    for parameter in model.parameters():
        if not isinstance(parameter, Params4bit):
            others.append(parameter)
            continue
        state = parameter.quant_state
        packed += [parameter.data, state.absmax, state.code]
        if state.nested:
            packed += [state.offset, state.state2.absmax, state.state2.code]
    shapes = linear_layers(config).values()
    assert sum(nf4_bytes(i * o, double_quant=double_quant) for i, o in shapes) == tensor_bytes(packed)
    assert unquantised_bytes(config, 2) == tensor_bytes(others)


@pytest.mark.torch
@pytest.mark.parametrize("name", RAW)
def test_adapter_and_its_files_are_exact(name: str, tmp_path: Path) -> None:
    """LoRA parameters, gradients and AdamW state after one step, the adapter's file to the byte, the checkpoint's data."""
    import torch
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    tuned = with_lora(quantised(RAW[name], tmp_path, torch.float32), RANK).train()
    trained = [p for p in tuned.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    tuned(input_ids=torch.zeros((1, 4), dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    config = config_of(name)
    vram = estimate(contract(adapter={"rank": RANK}), config, rows=10).vram
    moments = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    assert vram.adapter == tensor_bytes(trained)
    assert vram.gradients == tensor_bytes(p.grad for p in trained if p.grad is not None)
    assert vram.optimizer == tensor_bytes(moments)

    lora = lora_tensors(config, RANK)
    weights = {key: value.float().contiguous() for key, value in get_peft_model_state_dict(tuned).items()}
    assert {key: tuple(value.shape) for key, value in weights.items()} == lora
    save_file(dict(sorted(weights.items())), tmp_path / "adapter.safetensors", metadata={"format": "pt"})
    assert adapter_file_bytes(lora) == (tmp_path / "adapter.safetensors").stat().st_size
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    assert optimizer_state_bytes(lora) == tensor_bytes([*state, torch.get_rng_state()])


@pytest.mark.torch
@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_a_checkpoints_optimizer_file_is_within_its_stated_slack(name: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    lora = lora_tensors(config_of(name), RANK)
    tensors = {"rng.cpu": torch.get_rng_state()}
    for index, shape in enumerate(lora.values()):
        tensors |= {f"optimizer.{index}.{key}": torch.zeros(shape) for key in ("exp_avg", "exp_avg_sq")}
        tensors[f"optimizer.{index}.step"] = torch.tensor(1.0)
    save_file(tensors, tmp_path / "state.safetensors")
    real = (tmp_path / "state.safetensors").stat().st_size
    assert optimizer_state_bytes(lora) < real
    assert adapter_file_bytes(lora) + real <= checkpoint_bytes(lora)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["qwen3", "qwen3-tied", "qwen3_5_text", "gpt2"])
def test_merged_model_is_as_large_as_the_base_that_transformers_saves(name: str, tmp_path: Path) -> None:
    folder = save(RAW[name], tmp_path)
    file = folder / "model.safetensors"
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    assert merged_bytes(config_of(name, dtype="float32")) == file.stat().st_size - header


def saved_bytes(tuned: Any, rows: int, length: int, **packed: Any) -> int:
    """Bytes that the forward pass of the body keeps for the backward pass, every storage once, parameters left out."""
    import torch

    own = {tensor.untyped_storage().data_ptr() for tensor in (*tuned.parameters(), *tuned.buffers())}
    seen: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    body = tuned.base_model.model.base_model
    ids = torch.zeros((rows, length), dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        masked = packed or {"attention_mask": torch.ones_like(ids)}
        output = body(input_ids=ids, use_cache=False, **masked)
    assert output.last_hidden_state.requires_grad
    return sum(seen.values())


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.BLOCKS])
@pytest.mark.parametrize("name", [spec.model_types[-1] for spec in SPECS.values()])
def test_activations_are_what_autograd_saves(name: str, recompute: Recompute, dtype: str, tmp_path: Path) -> None:
    """As transformers and PEFT compute; `test_activations.py` has the trainer's fused layers."""
    import torch

    from worker.training.model.linear_attention import use_own_scan

    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "n_positions": 128} if name == "gpt2" else {}
    compute = getattr(torch, dtype)
    base = quantised(RAW[name], tmp_path, compute, **drops)
    use_own_scan(base)
    tuned = with_lora(base, RANK).train()
    config = config_of(name)
    real = saved_bytes(tuned, 4, 64) / (4 * 64)
    planned = activation_bytes(config, RANK, compute.itemsize, kernels=False)
    if recompute is Recompute.NONE:
        assert planned == pytest.approx(real, rel=0.03)
        return
    tuned.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})
    kept = saved_bytes(tuned, 4, 64) / (4 * 64)
    floor = config.layers * config.hidden * compute.itemsize
    assert floor <= kept <= activation_bytes(config, RANK, compute.itemsize, recompute=recompute, kernels=False)


def test_memory_of_an_8b_model_is_the_published_floor() -> None:
    """6.77 GB before activations, at the rank that the notes assume, within a few per cent."""
    vram = estimate(contract(), QWEN3_8B, rows=100).vram
    before = vram.total - vram.activations - vram.logits - vram.runtime
    assert before == pytest.approx(6.77e9, rel=0.05)


def test_steps_and_tokens_are_the_planners() -> None:
    requested = contract(exec={"epochs": 2, "seq_len": 64, "batch_size": 4, "grad_accum": 2})
    found = estimate(
        requested, QWEN3_8B, rows=100, mean_tokens=80.0, machine=Machine(tokens_per_second=100.0, measured_by="ftjob-1")
    )
    assert found.optimizer_steps == optimizer_steps(90, requested)
    assert found.tokens == found.max_tokens == 90 * 2 * 64
    assert found.seconds == found.tokens / 100
    assert (found.time.basis, "measured on this base by ftjob-1" in found.time.reason) == ("measured", True)
    unknown = estimate(requested, QWEN3_8B, rows=100, machine=Machine(tokens_per_second=100.0))
    assert (unknown.tokens, unknown.fits) == (None, None)
    assert (unknown.time.basis, unknown.seconds) == ("steps", unknown.optimizer_steps * 0.2)


def test_validation_file_leaves_every_row_for_training() -> None:
    requested = contract(data={"train_file": "a", "validation_file": "b"}, exec={"epochs": 1, "seq_len": 8})
    assert estimate(requested, QWEN3_8B, rows=100).max_tokens == 800


def test_total_is_the_sum_of_its_parts() -> None:
    found = estimate(contract(), QWEN3_8B, rows=100, vram_bytes=141 * GIB)
    assert found.vram_bytes == sum(found.vram.model_dump().values())
    assert found.disk_bytes == sum(found.disk.model_dump().values())
    assert found.vram.runtime == RUNTIME_BYTES
    assert found.vram_budget == math.floor(141 * GIB * VRAM_FRACTION)
    bound = f"at most {found.vram_budget / GIB:.2f} GiB may be used"
    assert f"estimated peak {found.vram_bytes / GIB:.2f} GiB, {bound}: " in found.describe_memory()
    assert (found.fits, found.nearest_fit) == (True, None)
    assert len(found.model_dump_json()) > 100


def test_logits_are_those_of_one_chunk() -> None:
    short, long = (estimate(contract(exec={"seq_len": length}), QWEN3_8B, rows=9).vram for length in (1024, 8192))
    assert short.logits == long.logits == chunk_rows(QWEN3_8B.vocab) * QWEN3_8B.vocab * (2 + 8)
    assert chunk_rows(QWEN3_8B.vocab) * QWEN3_8B.vocab <= CHUNK_ELEMENTS
    assert chunk_rows(1 << 40) == 1


def test_8192_tokens_of_an_8b_model_fit_24_gib() -> None:
    """Fails while the logits of the whole row are counted, which the trainer never holds."""
    requested = contract(exec={"batch_size": 1, "seq_len": 8192})
    found = estimate(requested, QWEN3_8B, rows=9, vram_bytes=24 * GIB, recompute=Recompute.BLOCKS)
    assert found.fits


def test_what_is_on_every_gpu_is_not_split_among_them() -> None:
    """Fails while the memory of four GPUs counts as one."""
    requested = contract(exec={"batch_size": 1, "grad_accum": 4, "seq_len": 32_768})
    found = estimate(requested, QWEN3_8B, rows=9, vram_bytes=22 * GIB, recompute=Recompute.BLOCKS, devices=4)
    assert not found.possible
    nearest = found.nearest_fit
    assert nearest is not None
    assert nearest.configuration.seq_len == 16_384


def test_a_base_in_parts_is_advised_where_it_fits_no_other_way() -> None:
    requested = contract(exec={"batch_size": 1, "grad_accum": 4, "seq_len": 512})
    found = estimate(requested, QWEN3_8B, rows=9, vram_bytes=8 * GIB, recompute=Recompute.BLOCKS, devices=4)
    assert found.possible
    nearest = found.nearest_fit
    assert nearest is not None
    assert nearest.advice == "Hold the base in parts on 4 GPUs."


def test_limit_of_the_contract_is_the_budget() -> None:
    requested = contract(exec={"max_vram_fraction": 0.5})
    assert estimate(requested, QWEN3_8B, rows=9, vram_bytes=100 * GIB).vram_budget == 50 * GIB


def test_smaller_batch_comes_first() -> None:
    requested = contract(exec={"batch_size": 16, "grad_accum": 2, "seq_len": 1024})
    found = estimate(requested, QWEN3_8B, rows=100, vram_bytes=48 * GIB).nearest_fit
    assert found is not None
    shape = found.configuration
    assert shape.batch_size < 16
    assert shape.batch_size * shape.grad_accum == 32
    assert (shape.seq_len, shape.recompute, found.changes_result) == (1024, Recompute.NONE, False)
    assert found.advice.startswith(f"Set exec.batch_size to {shape.batch_size}")


@pytest.mark.parametrize(
    ("gib", "recompute", "advised"),
    [(40, Recompute.MLPS, "of norms and MLPs"), (20, Recompute.BLOCKS, "of whole blocks")],
)
def test_recomputing_comes_second_and_keeps_the_batch_that_fits(gib: int, recompute: Recompute, advised: str) -> None:
    requested = contract(exec={"batch_size": 16, "grad_accum": 1, "seq_len": 8192})
    found = estimate(requested, QWEN3_8B, rows=100, vram_bytes=gib * GIB).nearest_fit
    assert found is not None
    assert (found.configuration.recompute, found.configuration.seq_len) == (recompute, 8192)
    assert not found.changes_result
    assert advised in found.advice


def test_shorter_rows_come_last_and_are_flagged() -> None:
    requested = contract(exec={"batch_size": 1, "grad_accum": 1, "seq_len": 65536})
    found = estimate(requested, QWEN3_8B, rows=100, vram_bytes=24 * GIB)
    assert found.nearest_fit is not None
    assert found.nearest_fit.changes_result
    assert "truncates" in found.nearest_fit.advice
    assert any("positions" in note for note in found.notes)


def test_nothing_fits_a_tiny_device() -> None:
    found = estimate(contract(), QWEN3_8B, rows=100, vram_bytes=2 * GIB)
    assert (found.fits, found.nearest_fit) == (False, None)
    assert any("already exceed the memory" in note for note in found.notes)


@pytest.mark.exhaustive
@given(
    batch=st.integers(1, 64),
    accum=st.integers(1, 64),
    seq_len=st.integers(8, 1 << 16),
    gib=st.integers(1, 160),
    recompute=st.sampled_from(Recompute),
)
def test_nearest_fit_fits_and_keeps_the_effective_batch(
    batch: int, accum: int, seq_len: int, gib: int, recompute: Recompute
) -> None:
    requested = Configuration(batch_size=batch, grad_accum=accum, seq_len=seq_len, recompute=recompute)
    found = nearest_fit(contract(), QWEN3_8B, requested, gib * GIB)
    if found is None:
        return
    assert found.vram_bytes == vram_parts(contract(), QWEN3_8B, found.configuration).total <= gib * GIB
    assert found.configuration.batch_size * found.configuration.grad_accum == batch * accum
    assert found.changes_result == (found.configuration.seq_len < seq_len)
    if vram_parts(contract(), QWEN3_8B, requested).total <= gib * GIB:
        assert found.configuration == requested


def seconds(epoch_rows: list[int], **data: Any) -> float:
    """Estimated seconds of a job with a measured speed of 100 tokens per second and rows of 10 tokens."""
    job = contract(data={"train_file": "file-1", **data}, exec={"epochs": len(epoch_rows)})
    found = estimate(
        job, QWEN3_8B, rows=100, mean_tokens=10, epoch_rows=epoch_rows, machine=Machine(tokens_per_second=100.0)
    )
    assert found.seconds is not None
    return found.seconds


def test_watching_the_replay_file_takes_time() -> None:
    """Before each epoch the rows that may be replayed next are scored: twice as many as it replays, one forward pass each."""
    replay = {"replay_file": "file-2", "replay_ratio": 0.1}
    assert seconds([110, 110]) == 22.0
    # 2 · 10 rows a pass, two passes, a third of a training step each.
    assert seconds([110, 110], **replay) == pytest.approx(22 + 2 * 20 * 10 / 3 / 100, abs=0.02)
    assert seconds([110], **replay) == 11.0, "a single epoch watches nothing"
    assert seconds([110_000] * 2, **replay) == pytest.approx(22_000 + 2 * 256 * 10 / 3 / 100, abs=1)
