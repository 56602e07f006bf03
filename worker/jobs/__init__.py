"""The steps of a Celery task for a job: claim, attempt, child process, events, publish. No torch.

Start with `runner.py`. Imports `shared`, `worker.replica_client`, `worker.settings` and `worker.run_folder`; the trainer is
started by its module's name and never imported.
"""
