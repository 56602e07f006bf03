"""What `worker/train.py` tells its story with: a run set up, its steps, loss, optimizer, checkpoints, the adapter.

Start with `trainer.py`. `data/` is what it sees, `model/` what it trains, `reporting/` what it reports.
Imports `shared` and what `worker` has below it; no queue and no database.
"""

import logging

# At its import bitsandbytes warns that a package is not there which would fetch compiled code; it must not be there.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
