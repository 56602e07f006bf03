"""Bounds on the cost of one request's grammar: the cost of compiling it, and its cost at each generated token.

Start with `vllm_patch.py`, which puts both bounds into vLLM. A grammar is compiled in a child process first
(`compile_check.py` sends it, `compile_server.py` is the process): a compile in vLLM's own process cannot be stopped.
Imports `serving.settings`, `serving.vllm_white_space_patch`; vLLM and xgrammar only where they are used.
"""
