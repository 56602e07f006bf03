"""The gated delta rule of `worker/training/model/delta_rule.py` in Triton kernels, forward and backward.

Start with `functions.py`, the function that torch differentiates; `operators.py` has the kernels' shapes and FLOPs. Each
kernel's formula is in its docstring, with these names: `fresh`, `old`, `written`, decays and states as in `delta_rule.py`.
Imports no part of the trainer but that module.
"""
