"""The serving tier: vLLM's own OpenAI server with three additions: a LoRA resolver, a guard middleware, a launcher.

Start with `__main__.py` (`python -m serving`). `launch/` converts the settings to vLLM's command line. `middleware/`
checks requests before vLLM's routes get them. `resolver.py` is a plugin of vLLM that maps an adapter id to a verified
folder. Imports `shared`, but no web framework, SQL library, queue or other tier. Only the resolver,
`engine_process.py`, `vllm_server.py` and the patches of vLLM import vLLM.
"""
