"""The trained model: the NF4 base with LoRA, attention within documents, fused LoRA functions, memory.

Start with `load.py`. Imports `shared` and `worker.training.data`; nothing from `reporting/`.
"""
