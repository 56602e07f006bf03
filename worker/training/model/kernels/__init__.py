"""Norms, rotary embeddings, SwiGLU and linear attention on a GPU, by Triton kernels, and the same in torch.

Start with `blocks.py`, which gives them to a model; `choice.py` alone decides where they run.
Imports `convolution.py` and `delta_rule.py`, and no other part of the trainer.
"""
