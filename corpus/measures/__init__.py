"""Measures of a training file of a corpus: where its rows come from, how varied they are, and whether their code compiles.

Start with `statistics.py`. Imports the rest of `corpus`, `shared.checkers` and `shared.datasets`.
"""
