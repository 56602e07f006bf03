"""``python -m api.keys create NAME``: make an API key where the command line is not installed, e.g. in the API's container."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from shared.db import Database
from shared.errors import MensError
from shared.registry import Registry
from shared.settings import Settings


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the secret goes to stdout, everything else to stderr."""
    parser = argparse.ArgumentParser(prog="python -m api.keys", description=__doc__)
    parser.add_argument("verb", choices=["create"])
    parser.add_argument("name", help="whose key it is, e.g. alice or ci")
    arguments = parser.parse_args(argv)
    try:
        key, secret = Registry(Database(Settings().database_url)).create_key(arguments.name)
    except MensError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{key.id} for {key.name}; the secret is shown this once:", file=sys.stderr)
    print(secret)
    return 0


if __name__ == "__main__":
    sys.exit(main())
