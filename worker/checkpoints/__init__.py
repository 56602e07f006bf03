"""Checkpoints that one attempt leaves to the next: folders in the run folder, and their copies in the storage.

Start with `folders.py`. Imports `shared` and `worker.run_folder`; no torch.
"""
