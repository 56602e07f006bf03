"""The merge engine: an adapter folded into its base tensor by tensor, with bounded memory and the same bytes everywhere.

Start with `model_folder.py` (one merge of a folder). It loads no model class: it reads and writes tensors. Imports `shared`,
`worker.run_folder`, and `worker.training.model.nf4` for the values that training computed with.
"""
