"""What `worker/train.py` is made of: a run set up, its steps, loss, optimizer, checkpoints, the adapter.

Start with `trainer.py`. `data/` is what it sees, `model/` what it trains, `reporting/` what it reports.
Imports `shared` and what `worker` has below it; no queue and no database.
"""
