"""The worker tier: Celery tasks that work on jobs, and the programs that they start as child processes.

Start with `app.py` (the Celery application) or `train.py` (the trainer, `python -m worker.train`). `jobs/` never imports
torch; the trainer never imports Celery or SQLAlchemy. Imports `shared`; no other tier.
"""
