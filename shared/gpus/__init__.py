"""The NVIDIA GPUs of this machine: which GPUs the driver shows, which of them torch can use, and why the others cannot
be used.

Start with `usable.py`. `torch_program.py` loads torch, so it is executed as a child process, or imported where torch is
loaded already. Imports no other part of Mens.
"""
