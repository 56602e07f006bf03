"""A child program that does nothing, started as the worker starts its programs: ``python -m tests.support.quiet_child
plan.json run_dir``.
"""

import sys
from pathlib import Path

from worker.child_runtime import run_engine

if __name__ == "__main__":
    sys.exit(run_engine(lambda: None, Path(sys.argv[2])))
