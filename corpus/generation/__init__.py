"""Rows generated from columns: randomly drawn values, templates that join them, and answers of models.

Start with `columns.py`. Imports `corpus`, `shared.checkers`, `shared.datasets`, `shared.graders`, `shared.http_retry`, `shared.sandbox` and
`shared.settings`.
"""
