"""Rows from columns: values that are drawn, and templates that join them. No model is needed.

Start with `columns.py`. Imports `shared.corpus`, `shared.datasets` and `shared.graders.templates`.
"""
