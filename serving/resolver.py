"""A LoRA resolver plugin of vLLM: for the adapter id in a request, it returns a LoRA request with the verified folder.

vLLM calls the resolver when a request names a model that it does not know. It calls :func:`register` through the entry
point group ``vllm.general_plugins`` in every process that it starts, and in every other process that imports vLLM's
engine. So :func:`register` must have no effect in a process where Mens is not configured.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

from serving import vllm_cpu_patch, vllm_gpu_patch, vllm_qwen3_5_patch, vllm_white_space_patch
from serving.adapter_store import AdapterStore, ServableAdapter
from serving.grammars import vllm_patch as grammar_patch
from serving.process import process_settings, process_store
from shared.errors import ArtifactInvalid, Code, MensError
from shared.host import exit_with_parent

RESOLVER_NAME = "mens"

# A child of vLLM's logger, which has the handlers.
log = logging.getLogger("vllm.mens.resolver")


class MensResolver(LoRAResolver):
    """Resolves an adapter id to its verified folder.

    Args:
        open_store: returns the store; called at the first request, because vLLM creates a resolver in every process,
            also in those that never use it.
    """

    def __init__(self, open_store: Callable[[], AdapterStore] = process_store) -> None:
        self._open_store = open_store

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """Return the LoRA request for an adapter, or None if the name is not a valid adapter of the base; vLLM then
        responds with 404.

        Raises:
            MensError: a transient fault, e.g. a full disk. vLLM then responds with 500, because 404 would be wrong.
        """
        try:
            # In a thread: hashing a large adapter would stall every stream of this server.
            adapter = await asyncio.to_thread(self._fetch, base_model_name, lora_name)
        except MensError as error:
            log.warning("Adapter %r was refused. %s", lora_name[:200], error)
            if error.retryable:
                raise
            return None
        # vLLM replaces this number with one from its own counter.
        return LoRARequest(
            lora_name=lora_name,
            lora_int_id=1,
            lora_path=str(adapter.folder),
            base_model_name=adapter.manifest.base_model,
        )

    def _fetch(self, base_model_name: str, lora_name: str) -> ServableAdapter:
        store = self._open_store()
        if base_model_name != str(store.base_folder):
            raise ArtifactInvalid(
                Code.ADAPTER_BASE_MISMATCH,
                f"This engine runs {base_model_name!r}, not the base model {store.base.name} of the settings.",
                remedy="Start the engine with `python -m serving`.",
            )
        return store.fetch(lora_name)


def register() -> None:
    """Register the resolver and patch vLLM; make an engine process exit when its server does. vLLM calls this entry
    point.

    Idempotent. Does nothing in a process without a configured base.
    """
    try:
        settings = process_settings()
    except MensError as error:
        log.debug("Not a serving process of Mens. %s", error)
        return
    exit_with_parent()
    vllm_cpu_patch.apply_patch()
    vllm_gpu_patch.apply_patch()
    vllm_qwen3_5_patch.apply_patch()
    vllm_white_space_patch.apply_patch()
    grammar_patch.apply_patch(settings.serving_grammar_seconds)
    if RESOLVER_NAME in LoRAResolverRegistry.get_supported_resolvers():
        return
    LoRAResolverRegistry.register_resolver(RESOLVER_NAME, MensResolver())
