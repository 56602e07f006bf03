"""The serving tier: vLLM's own OpenAI server with three additions: a LoRA resolver, a guard middleware, a launcher.

Start with `__main__.py` (`python -m serving`). `launch/` turns settings into vLLM's command line, `middleware/` is in
front of vLLM's routes, `resolver.py` is vLLM's plugin: adapter id → verified folder. Imports `shared`; no web
framework, no SQL, no queue and no other tier. Only the plugin and the engine's patch import vLLM.
"""
