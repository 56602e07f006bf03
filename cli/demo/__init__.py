"""The demo: what it teaches, and how base and tuned model are compared; an installation is used as any client uses one.

Start with `lessons.py`. Imports the standard library and rich only; `cli/commands/demo.py` runs it.
"""
