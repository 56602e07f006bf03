"""The serving tier: vLLM's own OpenAI server, with three additions loaded the way vLLM wants them loaded.

    python -m serving     checks the base model, then becomes vLLM (`engine_args.py`)
    serving.wall.Wall     ASGI middleware: closes every route but a few, asks for the key, answers adapter checks
    serving.resolver      LoRA resolver plugin: adapter id → verified folder (`adapters.py`)
    serving.orphans       an engine process ends with its server

Tier rule: it rests on `shared` alone. It imports no web framework, no SQL, no queue, no torch, and no other tier; only
`resolver.py` may import vLLM. So everything here but the resolver is tested without an engine.
"""
