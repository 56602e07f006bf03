"""The control plane and the gateway to the models (FastAPI): jobs, files, models, keys, chat completions.

Start with `main.py`; `routes/` has one file per surface of the HTTP API, `inference/` the path of a request to a model.
Imports `shared`; no other tier, and no GPU library.
"""
