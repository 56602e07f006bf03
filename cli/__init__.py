"""The command line, `mens`: a client of the REST API, and `mens up`, which runs everything on one machine.

Start with `main.py`. `commands/` has one file per command, `client/` talks to an installation, `standalone/` runs one.
Imports `shared`, `corpus` and the API's migrations; no torch.
"""
