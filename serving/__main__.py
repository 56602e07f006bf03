"""`python -m serving`: check the base model, then become vLLM. Exit status 2 and one line on stderr if it cannot."""

from __future__ import annotations

import os
import sys

from serving.engine_args import engine_argv, engine_env
from serving.runtime import find_base
from serving.settings import load_settings
from shared.catalog import verify_model_folder
from shared.errors import MensError

EXIT_REFUSED = 2


def main() -> None:
    """Become vLLM, or exit with status 2 when the server may not start."""
    try:
        settings = load_settings()
        entry, folder = find_base(settings)
        verify_model_folder(entry, folder)
    except MensError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    # exec, not a child: signals, exit status and the supervisor's view all belong to vLLM itself.
    argv = [sys.executable, *engine_argv(settings, folder)]
    os.execvpe(sys.executable, argv, {**os.environ, **engine_env(settings, entry.digest)})  # noqa: S606


if __name__ == "__main__":
    main()
