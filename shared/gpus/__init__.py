"""The NVIDIA GPUs of this machine: what the driver shows, what torch can use of it, and why not the rest.

Start with `usable.py`. `torch_program.py` loads torch, so it is executed as a child process, or imported where torch is
loaded already. Imports no other part of Mens.
"""
