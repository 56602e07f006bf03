"""The documentation site of `make docs`: the unchanged Markdown pages, and reference pages generated from the code.

Start with `pages.py`, which writes the folder that Sphinx reads. `conf.py` is Sphinx' configuration. Imports `cli`, for
its commands, and `shared/contract`.
"""
