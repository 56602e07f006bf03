"""Sandbox for untrusted code: python graders, each item in a process that can reach nothing but its own input.

Start with `client.py`, which starts `python -m shared.sandbox` and sends it requests; `probe.py` finds out whether this
machine can confine code, by trying to break out. The code inside and the code outside do not import each other:
`fork_server.py`, `grader_process.py` and their imports have no key, no database and no network. Imports `errors`,
`host`.
"""
