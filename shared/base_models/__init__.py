"""A base model's folder, read without a GPU library: catalogue, config, weight files, shapes.

Start with `catalog.py`; `families.py` is the file to which a family of models is added. Imports `shared.hashing` and
`shared.errors`.
"""
