"""Where code of others runs: python graders, each item in a process that can reach nothing but its own input.

Start with `client.py`, which starts `python -m shared.sandbox` and asks it; `probe.py` says whether this machine can contain
code, by trying to break out. Nothing that is imported here is imported by the code that runs inside, and the other way round:
`fork_server.py`, `grader_process.py` and what they use hold no key, no database and no network. Imports `errors`, `host`.
"""
