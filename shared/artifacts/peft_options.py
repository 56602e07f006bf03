"""``adapter_config.json`` in a PEFT folder that another program wrote: TRL, Unsloth and axolotl let PEFT write it, and
torchtune writes the same format.

The set of options is closed: an option that changes what the adapter computes is converted (`peft_import.py`) or
refused. Unknown options are refused too. Options that only affected the training are ignored.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any, Self

import regex
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shared.artifacts.manifests import MAX_CONFIG_BYTES, unservable
from shared.base_models.tensors import HEAD
from shared.contract.sections import MAX_ALPHA
from shared.errors import ArtifactInvalid, Code

MAX_RANK = 512
"""Largest rank that vLLM accepts."""
MATCH_SECONDS = 10.0
"""Time limit for all expressions of a folder together: they are untrusted, and a short one can run indefinitely."""
ALL_LINEAR = "all-linear"
_ANY_LAYER = r".*?\.[^.]*\.(?P<idx>\d+)\."
"""Matches a module in a numbered layer: the first number of its name counts."""
ACCEPTED: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM", None),
    "bias": ("none",),
    # Other methods start from weights taken out of the base, so that the adapter fits only the changed base.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}
WITHOUT_EFFECT = frozenset(
    {
        "auto_mapping", "base_model_class", "corda_config", "ensure_weight_tying", "eva_config", "inference_mode",
        "loftq_config", "lora_dropout", "lora_ga_config", "megatron_config",
        "megatron_core", "parent_library", "peft_version", "qalora_group_size", "revision", "runtime_config",
    }
)  # fmt: skip
"""Options that affect only the training."""

Text = Annotated[str, Field(max_length=500)]
Expression = Annotated[str, Field(max_length=10_000)]
Index = Annotated[int, Field(strict=True)]
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
    target_modules: Expression | list[Text]
    exclude_modules: Expression | list[Text] | None = None
    layers_to_transform: Index | list[Index] | None = None
    layers_pattern: Text | list[Text] | None = None
    base_model_name_or_path: str | None = None

    @model_validator(mode="after")
    def _layers_are_chosen_as_peft_allows(self) -> Self:
        if isinstance(self.target_modules, str) and (self.layers_to_transform, self.layers_pattern) != (None, None):
            raise ValueError("layers_to_transform and layers_pattern need target_modules as a list of names")
        if self.layers_pattern and self.layers_to_transform is None:
            raise ValueError("layers_pattern needs layers_to_transform")
        return self

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
    """Finds the options of each module by PEFT's rules, whose patterns are regular expressions."""

    def __init__(self, options: PeftOptions) -> None:
        self._options = options
        self._deadline = time.monotonic() + MATCH_SECONDS

    def is_target(self, module: str) -> bool:
        """Return whether PEFT adapts a module: ``target_modules`` covers it, and no other option leaves it out."""
        options = self._options
        targets = options.target_modules
        if self._covers(options.exclude_modules or [], module, "exclude_modules"):
            return False
        if isinstance(targets, str) and targets.lower() == ALL_LINEAR:
            return module != HEAD
        # In PEFT, a module that is named in full is a target in any layer.
        return self._covers(targets, module, "target_modules") and (module in targets or self._is_in_layers(module))

    def rank_and_alpha(self, module: str) -> tuple[int, float]:
        """Return the module's rank and alpha: those of the first pattern that its name ends with, or else the folder's."""
        options = self._options
        rank = self._first("rank_pattern", options.rank_pattern or {}, module)
        alpha = self._first("alpha_pattern", options.alpha_pattern or {}, module)
        return options.r if rank is None else int(rank), options.lora_alpha if alpha is None else alpha

    def _covers(self, names: str | list[str], module: str, param: str) -> bool:
        """Return whether an expression or a list of names matches a module: its whole name, or for a list also its last
        parts.
        """
        if isinstance(names, str):
            return self._matches(names, module, param) is not None
        return any(module == name or module.endswith(f".{name}") for name in names)

    def _is_in_layers(self, module: str) -> bool:
        """Return whether a module is in one of ``layers_to_transform``."""
        layers, patterns = self._options.layers_to_transform, self._options.layers_pattern
        if layers is None or layers == []:
            return True
        names = [patterns] if isinstance(patterns, str) else patterns
        expressions = [rf"(?:^|.*?\.){name}\.(?P<idx>\d+)\." for name in names or ()] if patterns else [_ANY_LAYER]
        matches = (self._matches(expression, module, "layers_pattern", regex.match) for expression in expressions)
        match = next((match for match in matches if match), None)
        if match is None or match["idx"] is None:
            return False
        return int(match["idx"]) in ([layers] if isinstance(layers, int) else layers)

    def _first(self, param: str, pattern: dict[str, Any], module: str) -> float | None:
        values = (value for key, value in pattern.items() if self._matches(rf"(?:.*\.)?(?:{key})", module, param))
        return next(values, None)

    def _matches(
        self, expression: str, module: str, param: str, match: Callable[..., Any] = regex.fullmatch
    ) -> regex.Match[str] | None:
        left = max(0.001, self._deadline - time.monotonic())
        try:
            result: regex.Match[str] | None = match(expression, module, timeout=left, concurrent=True)
        except regex.error as error:
            raise _format(param, f"{expression[:200]!r} is not a valid expression: {error}") from None
        except TimeoutError:
            raise _format(param, f"its expressions take longer than {MATCH_SECONDS:g} s") from None
        return result


def parse_peft_options(raw: bytes) -> PeftOptions:
    """Read an ``adapter_config.json``.

    Raises:
        ArtifactInvalid: ``ADAPTER_IMPORT_FORMAT``, naming the field.
    """
    try:
        return PeftOptions.model_validate(json.loads(raw[:MAX_CONFIG_BYTES]))
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"].removeprefix("Value error, ")
        raise _format(".".join(map(str, first["loc"])) or "the top level", reason) from None
    except (ValueError, RecursionError):
        raise _format("the top level", "it is not a JSON object, or is longer than 1 MB") from None


def _format(where: str, reason: str) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.ADAPTER_IMPORT_FORMAT,
        f"The adapter_config.json cannot be used: at {where}, {reason}.",
        remedy="Give the adapter_config.json that PEFT or torchtune wrote with the weights.",
        param=where,
    )
