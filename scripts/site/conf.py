"""Sphinx' configuration; `make docs` runs it in an environment of its own, which has `locks/docs.lock` and nothing else."""

project = "Mens"
extensions = ["myst_parser"]
root_doc = "docs/README"
# Anchors in the form of a forge, so that a link to a heading works in both places.
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Mens"
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
html_extra_path = ["index.html"]
# Blocks without a language are output of programs.
highlight_language = "none"
