"""What the trainer tells its story with; `worker/train.py` reads top to bottom and calls these."""

import logging

# At its import bitsandbytes warns that a package is not there which would fetch compiled code; it must not be there.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
