"""Families of base models that can be tuned: one :class:`FamilySpec` per family; no other code depends on the family.

To add a family, add its name to :class:`Family` and its value to ``SPECS``. The tests build a tiny model of every
family with transformers and PEFT and compare tensors, LoRA targets and memory with those that the spec implies.

Names and defaults are those of transformers 5.19, support for adapters is that of vLLM 0.32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

FULL, LINEAR, SLIDING = "full_attention", "linear_attention", "sliding_attention"
"""Kinds of attention, as ``layer_types`` of a config.json names them."""

Size = Literal[
    "hidden", "intermediate", "vocab", "positions", "head", "query", "gated_query", "kv", "qkv",
    "linear_conv", "linear_kernel", "linear_value", "linear_value_head", "linear_heads",
]  # fmt: skip
"""A number that determines tensor shapes; `ModelConfig.sizes` has its value."""

Linears = Mapping[str, tuple[Size, Size]]
"""Linear layers: name relative to the block → (in, out) features."""
Others = Mapping[str, tuple[Size | Literal[1], ...]]
"""Other tensors: name → shape."""


class Family(StrEnum):
    """Architectures that can be tuned."""

    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    QWEN3_5 = "qwen3_5"
    LLAMA = "llama"
    MISTRAL = "mistral"
    GPT2 = "gpt2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """The attention of one block.

    Attributes:
        linears: its linear layers.
        others: norms, convolution and decay, names relative to the block.
        output: the projection at its end; if it is stored, the layer is present.
        biased: linear layers that have a bias when ``attention_bias`` is true.
    """

    linears: Linears
    others: Others = field(default_factory=dict)
    output: str
    biased: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationBytes:
    """Bytes per token that a block of full attention saves for the backward pass: a factor for each size of the config,
    and a constant.

    Counted from autograd for transformers 5.19 with PEFT 0.21. In fp32 PEFT's LoRA layers of a block share their
    inputs; below fp32 each saves its own fp32 copy.
    """

    hidden: int
    intermediate: int
    query: int = 0
    kv: int = 0
    heads: int = 0
    kv_heads: int = 0
    rank: int
    constant: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySpec:
    """Everything that is particular to one family.

    Attributes:
        model_types: values of ``model_type`` in config.json. Exact names only, because similar ones (``qwen3_moe``,
            ``qwen2_vl``) have different tensors.
        keys: the family's own names of the common config keys.
        defaults: transformers' values for absent keys. An explicit null means another rule (heads, hidden / heads,
            4·hidden).
        grouped_heads: whether ``num_key_value_heads`` is a key; else each query head has its own key head.
        stated_head_dim: whether ``head_dim`` is a key; else the hidden size is divided by the heads.
        derived_intermediate: an absent intermediate size means 4·hidden.
        tied: the default of ``tie_word_embeddings``.
        attention_bias, mlp_bias: whether linear layers have biases, where the family's code fixes it; None: the config
            says so under the same key.
        sliding_window: whether ``sliding_window`` applies unless ``use_sliding_window`` says otherwise; None: the
            family's code does not support windows.
        composite: whether the config may be a vision-language one, whose language part is in ``text_config``.
        namespace: prefix of the blocks' names in the text-only class, which is the one that is trained.
        stored_namespaces: possible prefixes in the weight files, most likely first.
        block: name that numbers the blocks: ``layers`` or ``h``.
        embedding: the embedding matrix, relative to the namespace.
        outer: tensors outside the blocks, except the head.
        mixers: kinds of attention. A family with ``LINEAR`` among them is hybrid.
        mlp: linear layers of a block outside its attention.
        norms: the block's norms.
        transposed: whether linear layers are stored (in, out), as in GPT-2's Conv1D.
        lora: whether vLLM's class of the family supports adapters.
        lora_head: whether that class lists an untied ``lm_head`` among the modules that an adapter may change.
        activations: activations as transformers and PEFT save them, by the size in bytes of an element in the compute
            dtype.
        fused_activations: activations that the trainer saves for rows that share a sequence, computed in 2 bytes with
            Triton's kernels (`worker/training/model/fused_functions.py`).
        without_kernels: the same, on a GPU on which these kernels do not run.
        tiny_base: config keys of the tiny base that `worker/pretrain.py` makes of this family; None: it makes none.
    """

    model_types: tuple[str, ...]
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)
    grouped_heads: bool = True
    stated_head_dim: bool = True
    derived_intermediate: bool = False
    tied: bool = False
    attention_bias: bool | None = None
    mlp_bias: bool | None = False
    sliding_window: bool | None = None
    composite: bool = False
    namespace: str = "model"
    stored_namespaces: tuple[str, ...] = ("model",)
    block: str = "layers"
    embedding: str = "embed_tokens.weight"
    outer: Others
    mixers: Mapping[str, Mixer]
    mlp: Linears
    norms: Others
    transposed: bool = False
    lora: bool
    lora_head: bool
    activations: Mapping[int, ActivationBytes]
    fused_activations: Mapping[int, ActivationBytes]
    without_kernels: ActivationBytes
    tiny_base: Mapping[str, int | bool] | None = None

    @property
    def hybrid(self) -> bool:
        """Return true if some layers have linear attention."""
        return LINEAR in self.mixers


OUTER: Others = {"embed_tokens.weight": ("vocab", "hidden"), "norm.weight": ("hidden",)}
NORMS: Others = {"input_layernorm.weight": ("hidden",), "post_attention_layernorm.weight": ("hidden",)}
QK_NORMS: Others = {"self_attn.q_norm.weight": ("head",), "self_attn.k_norm.weight": ("head",)}
GATED_MLP: Linears = {
    "mlp.gate_proj": ("hidden", "intermediate"),
    "mlp.up_proj": ("hidden", "intermediate"),
    "mlp.down_proj": ("intermediate", "hidden"),
}
ATTENTION: Linears = {
    "self_attn.q_proj": ("hidden", "query"),
    "self_attn.k_proj": ("hidden", "kv"),
    "self_attn.v_proj": ("hidden", "kv"),
    "self_attn.o_proj": ("query", "hidden"),
}
LLAMA_MIXER = Mixer(linears=ATTENTION, output="self_attn.o_proj", biased=frozenset(ATTENTION))
QWEN3_MIXER = Mixer(linears=ATTENTION, others=QK_NORMS, output="self_attn.o_proj", biased=frozenset(ATTENTION))
# Qwen3.5's q_proj also yields a gate, next to the queries.
GATED_MIXER = Mixer(
    linears={**ATTENTION, "self_attn.q_proj": ("hidden", "gated_query")},
    others=QK_NORMS,
    output="self_attn.o_proj",
    biased=frozenset(ATTENTION),
)
DELTA_NET = Mixer(
    linears={
        "linear_attn.in_proj_qkv": ("hidden", "linear_conv"),
        "linear_attn.in_proj_z": ("hidden", "linear_value"),
        "linear_attn.in_proj_b": ("hidden", "linear_heads"),
        "linear_attn.in_proj_a": ("hidden", "linear_heads"),
        "linear_attn.out_proj": ("linear_value", "hidden"),
    },
    others={
        "linear_attn.conv1d.weight": ("linear_conv", 1, "linear_kernel"),
        "linear_attn.norm.weight": ("linear_value_head",),
        "linear_attn.dt_bias": ("linear_heads",),
        "linear_attn.A_log": ("linear_heads",),
    },
    output="linear_attn.out_proj",
)
LLAMA_ACTIVATIONS = {
    4: ActivationBytes(hidden=16, intermediate=16, query=8, kv=8, heads=4, rank=28, constant=8),
    2: ActivationBytes(hidden=28, intermediate=10, query=8, kv=4, heads=4, rank=28, constant=8),
}
LLAMA_FUSED = {
    4: ActivationBytes(hidden=16, intermediate=8, query=12, kv=8, heads=4, rank=28, constant=8),
    2: ActivationBytes(hidden=8, intermediate=4, query=4, kv=4, heads=4, rank=14, constant=8),
}
LLAMA_WITHOUT_KERNELS = ActivationBytes(hidden=12, intermediate=4, query=4, kv=4, heads=4, rank=14, constant=8)
QWEN3_ACTIVATIONS = {
    4: ActivationBytes(hidden=16, intermediate=16, query=12, kv=12, heads=8, kv_heads=4, rank=28, constant=8),
    2: ActivationBytes(hidden=28, intermediate=10, query=12, kv=8, heads=8, kv_heads=4, rank=28, constant=8),
}
QWEN3_FUSED = {
    4: ActivationBytes(hidden=16, intermediate=8, query=16, kv=12, heads=8, kv_heads=4, rank=28, constant=8),
    2: ActivationBytes(hidden=8, intermediate=4, query=6, kv=6, heads=8, kv_heads=4, rank=14, constant=8),
}
QWEN3_WITHOUT_KERNELS = ActivationBytes(
    hidden=12, intermediate=4, query=8, kv=8, heads=8, kv_heads=4, rank=14, constant=8
)
QWEN3_5_ACTIVATIONS = {
    4: ActivationBytes(hidden=16, intermediate=16, query=28, kv=12, heads=8, kv_heads=4, rank=28, constant=8),
    2: ActivationBytes(hidden=28, intermediate=10, query=16, kv=8, heads=8, kv_heads=4, rank=28, constant=8),
}
QWEN3_5_FUSED = {
    4: ActivationBytes(hidden=16, intermediate=8, query=32, kv=12, heads=8, kv_heads=4, rank=28, constant=8),
    2: ActivationBytes(hidden=8, intermediate=4, query=12, kv=6, heads=8, kv_heads=4, rank=14, constant=8),
}
QWEN3_5_WITHOUT_KERNELS = ActivationBytes(
    hidden=12, intermediate=4, query=14, kv=8, heads=8, kv_heads=4, rank=14, constant=8
)
GPT2_ACTIVATIONS = {
    4: ActivationBytes(hidden=32, intermediate=20, heads=4, rank=16, constant=16),
    2: ActivationBytes(hidden=24, intermediate=12, heads=4, rank=16, constant=16),
}
TINY_BASE: Mapping[str, int | bool] = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    # The smallest that vLLM's CPU attention supports.
    "head_dim": 32,
    "intermediate_size": 384,
    "tie_word_embeddings": True,
}
# vLLM's CPU kernel of linear attention takes heads of 64 and 128.
TINY_HYBRID_BASE: Mapping[str, int | bool] = {
    **TINY_BASE,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
}

SPECS: Mapping[Family, FamilySpec] = {
    Family.QWEN2: FamilySpec(
        model_types=("qwen2",),
        sliding_window=False,
        defaults={"num_key_value_heads": 32},
        # Fixed in the family's code, whatever the config says: q, k and v have biases, o has none.
        attention_bias=True,
        outer=OUTER,
        mixers={
            FULL: Mixer(
                linears=ATTENTION,
                output="self_attn.o_proj",
                biased=frozenset({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}),
            )
        },
        mlp=GATED_MLP,
        norms=NORMS,
        lora=True,
        lora_head=False,
        activations=LLAMA_ACTIVATIONS,
        fused_activations=LLAMA_FUSED,
        without_kernels=LLAMA_WITHOUT_KERNELS,
        tiny_base=TINY_BASE,
    ),
    Family.QWEN3: FamilySpec(
        model_types=("qwen3",),
        sliding_window=False,
        defaults={"num_key_value_heads": 32, "head_dim": 128},
        outer=OUTER,
        mixers={FULL: QWEN3_MIXER},
        mlp=GATED_MLP,
        norms=NORMS,
        lora=True,
        lora_head=True,
        activations=QWEN3_ACTIVATIONS,
        fused_activations=QWEN3_FUSED,
        without_kernels=QWEN3_WITHOUT_KERNELS,
        tiny_base=TINY_BASE,
    ),
    Family.QWEN3_5: FamilySpec(
        model_types=("qwen3_5", "qwen3_5_text"),
        defaults={
            "num_key_value_heads": 4,
            "head_dim": 256,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
        },
        composite=True,
        # Text-only weights under a composite config are common, and valid.
        stored_namespaces=("model.language_model", "model"),
        outer=OUTER,
        mixers={FULL: GATED_MIXER, LINEAR: DELTA_NET},
        mlp=GATED_MLP,
        norms=NORMS,
        lora=True,
        lora_head=True,
        activations=QWEN3_5_ACTIVATIONS,
        fused_activations=QWEN3_5_FUSED,
        without_kernels=QWEN3_5_WITHOUT_KERNELS,
        tiny_base=TINY_HYBRID_BASE,
    ),
    Family.LLAMA: FamilySpec(
        model_types=("llama",),
        mlp_bias=None,
        outer=OUTER,
        mixers={FULL: LLAMA_MIXER},
        mlp=GATED_MLP,
        norms=NORMS,
        lora=True,
        lora_head=True,
        activations=LLAMA_ACTIVATIONS,
        fused_activations=LLAMA_FUSED,
        without_kernels=LLAMA_WITHOUT_KERNELS,
        tiny_base=TINY_BASE,
    ),
    Family.MISTRAL: FamilySpec(
        model_types=("mistral",),
        sliding_window=True,
        defaults={"num_key_value_heads": 8},
        # Fixed in the family's code, whatever the config says.
        attention_bias=False,
        outer=OUTER,
        mixers={FULL: LLAMA_MIXER},
        mlp=GATED_MLP,
        norms=NORMS,
        lora=True,
        lora_head=False,
        activations=LLAMA_ACTIVATIONS,
        fused_activations=LLAMA_FUSED,
        without_kernels=LLAMA_WITHOUT_KERNELS,
        tiny_base=TINY_BASE,
    ),
    Family.GPT2: FamilySpec(
        model_types=("gpt2",),
        keys={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "intermediate_size": "n_inner",
        },
        defaults={"max_position_embeddings": 1024},
        grouped_heads=False,
        stated_head_dim=False,
        derived_intermediate=True,
        tied=True,
        attention_bias=True,
        mlp_bias=True,
        # The hub's own gpt2 has tensors without a prefix; transformers saves them with one.
        namespace="transformer",
        stored_namespaces=("transformer", ""),
        block="h",
        embedding="wte.weight",
        outer={
            "wte.weight": ("vocab", "hidden"),
            "wpe.weight": ("positions", "hidden"),
            "ln_f.weight": ("hidden",),
            "ln_f.bias": ("hidden",),
        },
        mixers={
            FULL: Mixer(
                linears={"attn.c_attn": ("hidden", "qkv"), "attn.c_proj": ("hidden", "hidden")},
                output="attn.c_proj",
                biased=frozenset({"attn.c_attn", "attn.c_proj"}),
            )
        },
        mlp={"mlp.c_fc": ("hidden", "intermediate"), "mlp.c_proj": ("intermediate", "hidden")},
        norms={
            "ln_1.weight": ("hidden",),
            "ln_1.bias": ("hidden",),
            "ln_2.weight": ("hidden",),
            "ln_2.bias": ("hidden",),
        },
        transposed=True,
        # vLLM's GPT-2 has no LoRA.
        lora=False,
        lora_head=False,
        activations=GPT2_ACTIVATIONS,
        # Its MLP is not the one that is fused.
        fused_activations=GPT2_ACTIVATIONS,
        without_kernels=GPT2_ACTIVATIONS[2],
    ),
}
"""Every family's spec."""

FAMILY_OF_MODEL_TYPE = {model_type: family for family, spec in SPECS.items() for model_type in spec.model_types}
"""``model_type`` of a config.json → family."""
LORA_FAMILIES = frozenset(family for family, spec in SPECS.items() if spec.lora)
"""Families whose vLLM class supports adapters."""
HEAD_FAMILIES = frozenset(family for family, spec in SPECS.items() if spec.lora_head)
"""Families whose vLLM class supports adapters of an untied ``lm_head``."""
TINY_FAMILIES = tuple(family for family, spec in SPECS.items() if spec.tiny_base is not None)
"""Families of which `worker/pretrain.py` can make a tiny base."""


def join_name(namespace: str, name: str) -> str:
    """Return a tensor's full name; the namespace may be empty."""
    return f"{namespace}.{name}" if namespace else name


# Sorted, so that messages do not depend on the order of the families.
EMBEDDING_KEYS = tuple(
    sorted({join_name(space, spec.embedding) for spec in SPECS.values() for space in spec.stored_namespaces}, key=len)
)
"""Names of embedding matrices, in the order in which they are looked up."""

_TRANSPOSED = re.compile(
    "|".join(
        rf"(?:^|\.){spec.block}\.\d+\.(?:{'|'.join(map(re.escape, [*spec.mixers[FULL].linears, *spec.mlp]))})\.weight$"
        for spec in SPECS.values()
        if spec.transposed
    )
)


def is_transposed(name: str) -> bool:
    """Return whether this tensor is a linear layer stored as (in, out), where other families have (out, in)."""
    return _TRANSPOSED.search(name) is not None
