"""The merge engine: an adapter folded into its base tensor by tensor, with bounded memory and the same bytes everywhere.

Start with `model_folder.py` (one merge of a folder), which loads no model class: it reads and writes tensors. `fidelity.py` then
compares the result with base + adapter. Imports `shared`, `worker.run_folder`, `worker.probe_chats`, and of `worker.training.model`
the values that training computed with and the names of layers.
"""
