"""Limits on the cost of one request's grammar: the cost of compiling it, and its cost at each generated token.

Start with `vllm_patch.py`, which adds both limits to vLLM. A compilation in vLLM's own process cannot be stopped, so
each grammar is first compiled in a child process: `compile_check.py` sends it there, and `compile_server.py` runs
there. Imports `serving.settings` and `serving.vllm_white_space_patch`; only the modules that need vLLM or xgrammar
import them.
"""
