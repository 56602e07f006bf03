"""Compares a base's tokenizer with the one that transformers loads from it: ``python -m worker.bases.tokenizer_check
BASE_DIR``.

The trainer compares the two as well, on a job's rows; this program finds a difference when the base is added. An error is one line
of JSON on stdout. It loads no weights and no torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer
from transformers.utils.logging import set_verbosity_error

from shared.errors import ArtifactInvalid, Code, InvalidRequest, MensError
from shared.tokenization.agreement import ONE_TOKENIZER, first_difference
from shared.tokenization.tokenizer import Tokenizer
from worker.child_runtime import print_error

CHAT = [
    {"role": "user", "content": "What costs 3,499.90 €?"},
    {"role": "assistant", "content": "  A  naïve\n\tguess. 数据"},
]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, and print an error as JSON."""
    parser = argparse.ArgumentParser(prog="python -m worker.bases.tokenizer_check", description=__doc__)
    parser.add_argument("base", type=Path, metavar="BASE_DIR", help="folder of the base model")
    arguments = parser.parse_args(argv)
    try:
        compare(arguments.base)
    except MensError as error:
        return print_error(error)
    return 0


def compare(folder: Path) -> None:
    """Compare the token ids of a few strings with those of transformers.

    Raises:
        ArtifactInvalid: ``TOKENIZER_MISMATCH``.
    """
    set_verbosity_error()
    tokenizer = Tokenizer.load(folder)
    try:
        other = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        # transformers may raise anything. The cause is one of the folder's files.
        raise _mismatch(f"transformers cannot load the base's tokenizer ({type(error).__name__}: {error})") from error
    texts = []
    try:
        texts.append(tokenizer.render(CHAT).text)
    except InvalidRequest:
        pass  # A template that refuses this chat is checked on a job's rows.
    difference = first_difference(tokenizer, lambda text: other(text, add_special_tokens=False)["input_ids"], texts)
    if difference is not None:
        raise _mismatch(f"transformers and the base's tokenizer.json encode {difference[:60]!r} differently")


def _mismatch(reason: str) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.TOKENIZER_MISMATCH,
        f"{reason}.",
        remedy=ONE_TOKENIZER,
        param="tokenizer.json",
    )


if __name__ == "__main__":
    sys.exit(main())
