"""Norms, rotary embeddings and SwiGLU in one pass each on a GPU, by Triton kernels, and the same in torch.

Start with `blocks.py`, which gives them to a model; `choice.py` alone decides where they run. Imports no part of the
trainer.
"""
