"""Results of the CUDA-only branches, compared with the same on a CPU or in fp32: ``python -m bench.acceptance.parity
PART DEVICE``.
"""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from bitsandbytes.functional import QuantState, dequantize_4bit, quantize_4bit
from peft import PeftModel
from torch import Tensor

from bench.acceptance.kernel_functions import KernelFunctions
from bench.acceptance.results import Goal, PartResult, run_part
from bench.training.gpu_variants import dequantised
from bench.training.recipe import InputsRequest
from bench.training.shapes import SHAPES
from bench.training.training_inputs import make_base
from shared.contract.sections import AdapterSection, QuantSection
from worker.training.model.attention import attend_within_documents, has_varlen_kernel
from worker.training.model.kernels import choice
from worker.training.model.kernels.delta_rule.functions import HeadSizes
from worker.training.model.load import attach_lora, load_base, trainable
from worker.training.model.lora_fusion import fuse_lora
from worker.training.model.nf4 import BLOCK_SIZE

HEAD_SIZES = (64, 128, 256)
LINEAR_HEADS = (HeadSizes(1, 64, 1, 64), HeadSizes(1, 128, 2, 128))
"""Heads of linear attention of the tiny hybrid base and of Qwen3.5-4B."""
DOCUMENTS = (0, 7, 8, 200, 457)
OTHER_CODES = 1e-3
"""Largest share of code bytes that two devices' quantisers may round differently."""
ROUNDING = 0.02
"""Largest relative distance of a bf16 result from the fp32 result."""
LIKE_AUTOCAST = 1.15
"""Largest distance of gradients from fp32, as a multiple of the distance of peft's gradients under autocast."""
ADAPTERS, ROW = 8, 60


def nf4(device: str) -> PartResult:
    """Compare NF4 on the device with NF4 on a CPU: plain and nested, whole blocks and a cut one.

    Dequantised codes must be equal, because an adapter trained on a GPU is merged on a CPU. At the border of two codes,
    two quantisers may round a value differently.
    """
    generator = torch.Generator().manual_seed(0)
    dequantised, codes, compared = 0, 0, 0
    for shape in ((512, 2048), (500, 517)):
        weight = torch.randn(shape, generator=generator).bfloat16()
        for nested in (False, True):
            ours, theirs = (_quantised(weight.to(there), nested) for there in (device, "cpu"))
            packed, state = ours
            codes += int((packed.cpu().flatten() != theirs[0].flatten()).sum())
            values = dequantize_4bit(packed, state).cpu()
            state.to("cpu")
            dequantised += int((values != dequantize_4bit(packed.cpu(), state)).sum())
            compared += weight.numel()
    goals = [
        Goal("A1-nf4", dequantised / compared, 0.0, facts={"compared": compared}),
        Goal("A1-nf4-codes", codes / compared, OTHER_CODES),
    ]
    return PartResult({"values compared": compared, "differing": dequantised, "bytes of codes": codes}, goals)


def _quantised(weight: Tensor, nested: bool) -> tuple[Tensor, QuantState]:
    packed, state = quantize_4bit(weight, blocksize=BLOCK_SIZE, compress_statistics=nested, quant_type="nf4")
    return packed, state


def attention(device: str) -> PartResult:
    """Compare the kernel for all documents in bf16 with one fp32 call per document: values and gradients, with grouped heads."""
    distances, kernels = {}, 0
    for size in HEAD_SIZES:
        generator = torch.Generator().manual_seed(size)
        tokens = DOCUMENTS[-1]
        inputs = [torch.randn(1, heads, tokens, size, generator=generator).bfloat16() for heads in (8, 2, 2)]
        kernels += has_varlen_kernel(inputs[0].to(device))
        ours, exact = (
            _attended([tensor.to(there, dtype) for tensor in inputs], torch.device(there))
            for there, dtype in ((device, torch.bfloat16), ("cpu", torch.float32))
        )
        distances[size] = max(_distance(tensor, other) for tensor, other in zip(ours, exact, strict=True))
    goal = Goal("A1-attention", max(distances.values()), ROUNDING, facts={"by_head_size": distances})
    missing = Goal("A1-attention-kernel", kernels, len(HEAD_SIZES), at_most=False)
    return PartResult({"largest distance": goal.figure, "head sizes that use the kernel": kernels}, [goal, missing])


def _attended(inputs: list[Tensor], device: torch.device) -> list[Tensor]:
    """Return attention's output and the gradients of its inputs."""
    query, key, value = leaves = [tensor.requires_grad_() for tensor in inputs]
    boundaries = torch.tensor(DOCUMENTS, dtype=torch.int32, device=device)
    longest = int(boundaries.diff().max())
    output, _ = attend_within_documents(
        torch.nn.Module(), query, key, value, None, cu_seq_lens_q=boundaries, max_length_q=longest
    )
    seed = torch.linspace(-1, 1, output.numel(), device=device).view_as(output).to(output.dtype)
    return [output.detach(), *torch.autograd.grad(output, leaves, seed)]


def _distance(ours: Tensor, exact: Tensor) -> float:
    exact = exact.cpu().float()
    return float((ours.cpu().float() - exact).norm() / exact.norm())


def lora(device: str) -> PartResult:
    """Compare the fused functions' gradients in bf16 with peft's under autocast, as trainers run it, on one NF4 base.

    Both are judged by their distance from fp32, summed over adapters and rows, because for a single one either may be
    closer.
    """
    with TemporaryDirectory(prefix="bench-gpu-") as folder:
        make_base(Path(folder), SHAPES["tiny"], InputsRequest(SHAPES["tiny"], 0, 0, {}, device=device))
        base = load_base(Path(folder), QuantSection(), torch.device(device), torch.bfloat16)
    theirs = attach_lora(base, AdapterSection(rank=4, alpha=8, dropout=0), 3).train()
    ours = copy.deepcopy(theirs)
    # The same quantised values on a CPU, whose own quantiser would round some to other codes.
    exact = dequantised(copy.deepcopy(theirs)).float().cpu()
    report = fuse_lora(ours, cache_dequantised=False)
    errors = {"fused": 0.0, "autocast": 0.0, "peft": 0.0}
    for seed in range(ADAPTERS):
        expected = _gradients(exact, seed)
        gradients = {"fused": _gradients(ours, seed), "peft": _gradients(theirs, seed)}
        with torch.autocast(device, torch.bfloat16):
            gradients["autocast"] = _gradients(theirs, seed)
        for name, tensors in gradients.items():
            errors[name] += _error(tensors, expected) / ADAPTERS
    goal = Goal("A1-lora", errors["fused"] / errors["autocast"], LIKE_AUTOCAST, facts=errors | {"adapters": ADAPTERS})
    return PartResult({"error, in autocast's": goal.figure, "fused groups": str(report)}, [goal])


def _gradients(model: PeftModel, seed: int) -> list[Tensor]:
    """Return the gradients for a LoRA adapter (with nonzero B) and a row that are the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.requires_grad:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
                parameter.grad = None
    ids = torch.randint(0, SHAPES["tiny"].vocabulary, (1, ROW), generator=generator).to(model.device)
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    return [parameter.grad.detach().cpu() for parameter in trainable(model) if parameter.grad is not None]


def _error(gradients: list[Tensor], exact: list[Tensor]) -> float:
    """Return the overall distance of the gradients, relative to their norm."""
    squares = [(float((a - b).square().sum()), float(b.square().sum())) for a, b in zip(gradients, exact, strict=True)]
    distance, norm = map(sum, zip(*squares, strict=True))
    return float((distance / norm) ** 0.5)


def kernels(device: str) -> PartResult:
    """Compare Triton's kernels with torch, as the trainer does before a job's first step."""
    ours = KernelFunctions.of(device)
    with patch.multiple(choice, **ours.functions):
        distance = choice.largest_distance(torch.device(device), torch.bfloat16)
    goal = Goal("A1-kernels", distance, choice.TOLERANCE, facts={"computed_by": ours.computed_by})
    return PartResult({"largest distance": distance, "computed by": ours.computed_by}, [goal])


def linear_attention(device: str) -> PartResult:
    """Compare Triton's kernels of linear attention with torch in fp32, as the trainer does before a job's first step."""
    ours = KernelFunctions.of(device)
    with patch.multiple(choice, **ours.functions):
        distances = {
            sizes.key_size: choice.delta_distance(torch.device(device), torch.bfloat16, sizes) for sizes in LINEAR_HEADS
        }
    facts = {"computed_by": ours.computed_by, "by_head_size": distances}
    goal = Goal("A1-linear-attention", max(distances.values()), choice.TOLERANCE, facts=facts)
    return PartResult({"largest distance": goal.figure, "computed by": ours.computed_by}, [goal])


PARTS = {
    "nf4": nf4,
    "attention": attention,
    "lora": lora,
    "kernels": kernels,
    "linear attention": linear_attention,
}

if __name__ == "__main__":
    run_part(PARTS)
