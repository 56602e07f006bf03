"""A patch of vLLM's LoRA on a CPU: each row of a batch is computed with its own request's adapter, and a row of the
base without an adapter.

vLLM marks the base's rows with slot -1. Its CPU operators use -1 as an index, so in a batch with adapters they compute
the base's rows with the weights in the last slot. Once all slots are used, these are the weights of an adapter (vLLM
0.32; vllm pull request 48421). The operators also copy both matrices of a layer for each row of the batch; for a
prompt, this takes several times as long as the base's own computation. The patch multiplies all rows of an adapter at
once, and skips the base's rows.

For prompt log-probabilities, vLLM computes the logits of one request's prompt, but uses the slots of the batch's
sampler rows, of which there is one per request. If the batch has two requests, the number of slots differs from the
number of rows, and the engine exits (vllm issue 16668). The patch gives these rows the slot of their own request.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from vllm.lora.ops.torch_ops import bgmv_expand, bgmv_shrink
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform

BASE_SLOT = -1
prompt_adapter: ContextVar[int | None] = ContextVar("prompt_adapter", default=None)
"""Number that vLLM gave to the adapter whose prompt logits are being computed; 0: the base; None: sampler rows are
being computed.
"""


class PatchedPunicaWrapperCPU(PunicaWrapperCPU):
    """Replacement for vLLM's class `PunicaWrapperCPU`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._adapters: list[int | None] = []
        self._rows_of_slots: list[tuple[int, Any]] = []
        # Patched here, because only the engine's process creates a wrapper; other processes should not import the
        # runner.
        patch_model_runner()

    def update_metadata(
        self, mapping: Any, lora_index_to_id: list[int | None], max_loras: int, vocab_size: int, **kwargs: Any
    ) -> None:
        """Set the mapping of the next batch's rows to adapters, and of slots to adapters."""
        super().update_metadata(mapping, lora_index_to_id, max_loras, vocab_size, **kwargs)
        self._adapters = list(lora_index_to_id)
        self._rows_of_slots = rows_of_slots(self.token_lora_indices)

    def add_lora_linear(
        self,
        y: Any,
        x: Any,
        lora_a_stacked: Any,
        lora_b_stacked: Any,
        scale: float,
        output_slices: tuple[int, ...],
        **_kwargs: Any,
    ) -> None:
        """Add the LoRA product: ``y[:, slice i] += x @ lora_a_stacked[i] * scale @ lora_b_stacked[i]``, except in the
        base's rows.

        Args:
            y: rows by output columns, changed in place.
            x: rows by input columns.
            lora_a_stacked, lora_b_stacked: for each slice, the matrices of all slots, of the shapes (slots, 1, rank,
                input) and (slots, 1, output, rank).
            output_slices: width of each slice, in the order of ``y``'s columns.
        """
        x, y = x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1])
        for slot, rows in self._rows_of_slots:
            selected = x[rows].float()
            columns = zip(lora_a_stacked, lora_b_stacked, y.split(output_slices, dim=1), strict=True)
            for lora_a, lora_b, part in columns:
                shrunk = (selected @ lora_a[slot, 0].float().T * scale).to(y.dtype)
                part[rows] += shrunk @ lora_b[slot, 0].to(y.dtype).T

    def add_lora_logits(
        self, y: Any, x: Any, lora_a_stacked: Any, lora_b_stacked: Any, scale: float, **_kwargs: Any
    ) -> None:
        """Add ``x @ lora_a_stacked * scale @ lora_b_stacked`` to ``y``, except in the base's rows."""
        x, y = x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1])
        slots = self._logits_slots()
        shrunk = torch.zeros((len(x), lora_b_stacked.size(-1)), dtype=torch.float32, device=x.device)
        bgmv_shrink(x, lora_a_stacked, shrunk, slots, scale)
        shrunk[(slots == BASE_SLOT).expand(len(x))] = 0
        bgmv_expand(shrunk, lora_b_stacked, y, slots, add_inputs=True)

    def _logits_slots(self) -> Any:
        """Return the slot of each sampler row; or, for the rows of one prompt, a single slot, which the operators use
        for all of them.
        """
        adapter = prompt_adapter.get()
        if adapter is None:
            return self.sampler_indices
        slot = self._adapters.index(adapter) if adapter else BASE_SLOT
        return torch.tensor([slot], dtype=torch.long, device=self.device)


def rows_of_slots(slots: torch.Tensor) -> list[tuple[int, Any]]:
    """Return each slot used in the batch with the index of its rows: a full slice if it has all rows. The base's rows
    are left out.
    """
    distinct = slots.unique().tolist()
    if len(distinct) == 1:
        return [(slot, slice(None)) for slot in distinct if slot != BASE_SLOT]
    return [(slot, (slots == slot).nonzero().flatten()) for slot in distinct if slot != BASE_SLOT]


def patch_model_runner() -> None:
    """Make vLLM's model runner record whose prompt logits it computes. Idempotent."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    compute = GPUModelRunner._get_prompt_logprobs_dict  # noqa: SLF001

    def get_prompt_logprobs_dict(runner: Any, hidden_states: Any, num_scheduled_tokens: dict[str, int]) -> Any:
        """Call vLLM's method for one request at a time. It removes a complete request from the runner's dictionary."""
        pending: dict[str, int] = runner.num_prompt_logprobs
        logprobs: dict[str, Any] = {}
        try:
            for request in list(pending):
                runner.num_prompt_logprobs = {request: pending[request]}
                row = runner.input_batch.req_id_to_index.get(request)
                token = prompt_adapter.set(0 if row is None else int(runner.input_batch.request_lora_mapping[row]))
                try:
                    logprobs |= compute(runner, hidden_states, num_scheduled_tokens)
                finally:
                    prompt_adapter.reset(token)
                if request not in runner.num_prompt_logprobs:
                    del pending[request]
        finally:
            runner.num_prompt_logprobs = pending
        return logprobs

    CPUModelRunner._get_prompt_logprobs_dict = get_prompt_logprobs_dict  # noqa: SLF001


def apply_patch() -> None:
    """Make vLLM use the patched class in this process, if it computes on a CPU."""
    if current_platform.is_cpu():
        path = f"{__name__}.{PatchedPunicaWrapperCPU.__name__}"
        type(current_platform).get_punica_wrapper = classmethod(lambda _: path)
