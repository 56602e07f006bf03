"""``python -m api.keys create NAME``: makes an API key where the command line is not installed, e.g. in the API's container."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from shared.database.audit.actors import AuditActor, acting
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.tenancy import LARGEST_LIMIT, MOST_TOKENS, SHARED, KeyLimits, Role, describe_rights
from shared.errors import MensError
from shared.settings import Settings, read_settings


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the secret goes to stdout, everything else to stderr."""
    arguments = _parser().parse_args(argv)
    try:
        limits = KeyLimits(
            requests_per_minute=arguments.rpm, concurrent_requests=arguments.concurrent, tokens_per_minute=arguments.tpm
        )
        keys = Keys(Database(read_settings(Settings).database_url))
        with acting(AuditActor.of_command()):
            key, secret = keys.create(arguments.name, arguments.tenant, arguments.role, limits)
    except MensError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rights = describe_rights(key.role, key.tenant)
    print(f"{key.id} for {key.name}, {rights}; the secret is shown this once:", file=sys.stderr)
    print(secret)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m api.keys", description=__doc__)
    parser.add_argument("verb", choices=["create"])
    parser.add_argument("name", help="name of the person or program that uses the key, e.g. alice or ci")
    parser.add_argument("--tenant", default=SHARED, help="tenant of the key (default: %(default)s)")
    role_help = "role of the key; an admin of `shared` may do everything in every tenant (default: %(default)s)"
    parser.add_argument("--role", type=Role, choices=list(Role), default=Role.ADMIN, help=role_help)
    parser.add_argument("--rpm", type=_limit, help="model requests per minute; default: unlimited")
    parser.add_argument("--concurrent", type=_limit, help="concurrent model requests; default: unlimited")
    tokens = partial(_limit, largest=MOST_TOKENS)
    parser.add_argument("--tpm", type=tokens, help="tokens of prompts and answers per minute; default: unlimited")
    return parser


def _limit(text: str, largest: int = LARGEST_LIMIT) -> int | None:
    if text.lower() == "none":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= largest:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {largest}, or none")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
