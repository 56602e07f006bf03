"""The demo: its lesson, and the comparison of base and tuned model; it uses an installation as any client does.

Start with `lessons.py`. Imports the standard library and rich only; `cli/commands/demo.py` runs it.
"""
