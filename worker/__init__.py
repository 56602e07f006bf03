"""The worker tier: Celery tasks that claim jobs, and the engine that a child process runs.

`app`, `run`, `child`, `publish` never import torch; `train`, `merge` and what they use never import Celery or SQLAlchemy.
"""
