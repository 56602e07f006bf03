"""The only SQL: tables, transactions, and one file of operations per noun (jobs, leases, files, adapters, aliases, keys,
usage).

Start with `tables/jobs.py`; `jobs.py` has the operations of callers, `leases.py` those of workers. Imports `shared.settings`
and below.

Every operation of a class runs in one transaction; functions that take a session run inside their caller's. Locks are taken in
this order, so that no two transactions wait for each other: a job, an alias, adapters by id and tenant, the change
counter; for files: a file or upload, its tenant, one content.
"""
