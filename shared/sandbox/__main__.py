"""``python -m shared.sandbox CONFIG``: the fork server; its standard input is its parent's socket."""

from __future__ import annotations

import json
import sys

from shared.sandbox.fork_server import serve

if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
