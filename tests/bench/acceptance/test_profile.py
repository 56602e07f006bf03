"""Classification of kernels by the names that CUDA's libraries, Triton and bitsandbytes give them in their sources."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "matrix products"),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32", "matrix products"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128>", "matrix products"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>", "attention"),
        ("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>", "NF4 to bf16"),
        (
            "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>>",
            "elementwise",
        ),
        ("_norm_forward", "elementwise"),
        ("aten::mm", "matrix products"),
    ],
)
def test_group_of_a_kernel(kernel: str, group: str) -> None:
    from bench.acceptance.profile import group_of

    assert group_of(kernel) == group


def test_only_a_card_with_known_rates_is_judged() -> None:
    from bench.acceptance.profile import card_of
    from bench.training.paper_step import CARDS

    assert card_of("NVIDIA H100 80GB HBM3") is CARDS["h100"]
    assert card_of("NVIDIA GeForce RTX 4090") is CARDS["rtx4090"]
    assert card_of("NVIDIA L4") is None
