"""A bound on what one request's grammar may cost the engine: to compile, and at each token that is generated with it.

Start with `vllm_patch.py`, which puts both bounds into vLLM. A grammar is compiled in a child process first
(`compile_check.py` asks, `compile_server.py` is the process): nothing can end a compile in vLLM's own.
Imports `serving.settings`, `serving.vllm_white_space_patch`; vLLM and xgrammar only where they are used.
"""
