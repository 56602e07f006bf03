"""The parts of `worker/train.py`: a run's setup, its steps, loss, optimizer, checkpoints, the adapter.

Start with `trainer.py`. `data/` prepares its input, `model/` loads the trained model, `reporting/` reports on the run.
Imports `shared` and the modules of `worker` below it; no queue and no database.
"""
