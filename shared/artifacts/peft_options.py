"""``adapter_config.json`` of a PEFT folder from elsewhere: TRL, Unsloth and axolotl have PEFT write it, torchtune
writes its form.

The set of options is closed: one that changes what the adapter computes is converted (`peft_import.py`) or refused.
Unknown options are refused too. Options that only decided how it was trained are ignored.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import regex
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.artifacts.manifests import MAX_CONFIG_BYTES, unservable
from shared.base_models.tensors import HEAD
from shared.contract.sections import MAX_ALPHA
from shared.errors import ArtifactInvalid, Code

MAX_RANK = 512
"""Largest rank that vLLM accepts."""
MATCH_SECONDS = 10.0
"""Time limit for all expressions of a folder together: they are untrusted, and a short one can run indefinitely."""
ALL_LINEAR = "all-linear"
ACCEPTED: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM", None),
    "bias": ("none",),
    # Other methods start from weights taken out of the base, so that the adapter fits only the changed base.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}
WITHOUT_EFFECT = frozenset(
    {
        "auto_mapping", "base_model_class", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules", "inference_mode",
        "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_config",
        "megatron_core", "parent_library", "peft_version", "qalora_group_size", "revision", "runtime_config",
    }
)  # fmt: skip
"""Options about the training or the choice of layers, which the weights themselves show."""

Text = Annotated[str, Field(max_length=500)]
Rank = Annotated[int, Field(ge=1, le=MAX_RANK)]
Alpha = Annotated[float, Field(gt=0, le=MAX_ALPHA, allow_inf_nan=False)]


class PeftOptions(BaseModel):
    """Options that decide what an adapter computes; others are kept apart."""

    model_config = ConfigDict(extra="allow", frozen=True)
    peft_type: Any
    task_type: Any = None
    bias: Any = "none"
    init_lora_weights: Any = True
    r: Rank
    lora_alpha: Alpha
    use_rslora: bool = False
    rank_pattern: dict[Text, Rank] | None = None
    alpha_pattern: dict[Text, Alpha] | None = None
    target_modules: Annotated[str, Field(max_length=10_000)] | list[Text]
    base_model_name_or_path: str | None = None

    def refuse_unservable(self) -> None:
        """Refuse options that vLLM would refuse, or ignore.

        Raises:
            ArtifactInvalid: ``ADAPTER_NOT_SERVABLE``, naming the option.
        """
        for name, accepted in ACCEPTED.items():
            if getattr(self, name) not in accepted:
                raise unservable(name, getattr(self, name))
        for name, value in (self.model_extra or {}).items():
            if value and name not in WITHOUT_EFFECT:
                raise unservable(name, value)


class ModuleMatcher:
    """Options of each module, by PEFT's rules, whose patterns are regular expressions."""

    def __init__(self, options: PeftOptions) -> None:
        self._options = options
        self._deadline = time.monotonic() + MATCH_SECONDS

    def is_target(self, module: str) -> bool:
        """Return whether ``target_modules`` covers a module: by an expression, by a whole name or by its last parts."""
        targets = self._options.target_modules
        if isinstance(targets, list):
            return any(module == target or module.endswith(f".{target}") for target in targets)
        if targets.lower() == ALL_LINEAR:
            return module != HEAD
        return self._matches(targets, module, "target_modules")

    def rank_and_alpha(self, module: str) -> tuple[int, float]:
        """Return the module's rank and alpha: of the first pattern that its name ends with, else the folder's."""
        options = self._options
        rank = self._first("rank_pattern", options.rank_pattern or {}, module)
        alpha = self._first("alpha_pattern", options.alpha_pattern or {}, module)
        return options.r if rank is None else int(rank), options.lora_alpha if alpha is None else alpha

    def _first(self, param: str, pattern: dict[str, Any], module: str) -> float | None:
        found = (value for key, value in pattern.items() if self._matches(rf"(?:.*\.)?(?:{key})", module, param))
        return next(found, None)

    def _matches(self, expression: str, module: str, param: str) -> bool:
        left = max(0.001, self._deadline - time.monotonic())
        try:
            return regex.fullmatch(expression, module, timeout=left, concurrent=True) is not None
        except regex.error as error:
            raise _format(param, f"{expression[:200]!r} is not a valid expression: {error}") from None
        except TimeoutError:
            raise _format(param, f"its expressions take longer than {MATCH_SECONDS:g} s") from None


def parse_peft_options(raw: bytes) -> PeftOptions:
    """Read an ``adapter_config.json``.

    Raises:
        ArtifactInvalid: ``ADAPTER_IMPORT_FORMAT``, naming the field.
    """
    try:
        return PeftOptions.model_validate(json.loads(raw[:MAX_CONFIG_BYTES]))
    except ValidationError as error:
        first = error.errors()[0]
        raise _format(".".join(map(str, first["loc"])) or "its top", first["msg"]) from None
    except (ValueError, RecursionError):
        raise _format("its top", "it is not a JSON object, or is longer than 1 MB") from None


def _format(where: str, reason: str) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.ADAPTER_IMPORT_FORMAT,
        f"The adapter_config.json cannot be used: at {where}, {reason}.",
        remedy="Give the adapter_config.json that PEFT or torchtune wrote with the weights.",
        param=where,
    )
