"""`python -m serving.vllm_server OPTIONS`: vLLM's OpenAI-compatible server; the garbage collector is off while it is
imported.

On a GPU, vLLM's engine runs in a new interpreter, which imports this module again. So all code outside the `if`
statement below runs there too.
"""

from __future__ import annotations

import logging

from shared.garbage_collection import without_collections

with without_collections():
    # Import the engine here too: vLLM itself would import it only when it starts the engine.
    import vllm.v1.engine.core  # noqa: F401
    from vllm.entrypoints.launchers.api_server.entry import main

    from serving import vllm_cut_calls_patch, vllm_end_tokens_patch, vllm_responses_patch
    from serving.engine_process import fork_engine_process
    from serving.middleware.self_test import is_of_requests
    from serving.process import process_settings

if __name__ == "__main__":
    logging.getLogger("vllm.v1.metrics.loggers").addFilter(is_of_requests)
    vllm_responses_patch.apply_patch()
    vllm_cut_calls_patch.apply_patch()
    vllm_end_tokens_patch.apply_patch()
    fork_engine_process(process_settings())
    main()
