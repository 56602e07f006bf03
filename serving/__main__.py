"""`python -m serving`: prepare the launch, print the chosen values, and replace this process with vLLM.

If the replica may not start, the command prints one line to stderr and exits with status 2.
"""

from __future__ import annotations

import os
import sys

from serving.launch.engine_args import engine_argv, engine_env
from serving.launch.prepare import prepare
from serving.openmp import preload_openmp
from serving.settings import load_settings
from shared.errors import MensError

EXIT_REFUSED = 2


def main() -> None:
    """Replace this process with vLLM, or exit with status 2 if the replica may not start."""
    try:
        launch = prepare(load_settings())
    except MensError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    # Flushed now: exec drops the buffers of this process.
    print(launch, flush=True)
    environment = {**os.environ, **engine_env(launch)}
    if launch.settings.serving_device == "cpu":
        environment = preload_openmp(environment)
    # exec instead of a child process: vLLM gets the signals itself, and the supervisor sees vLLM's own exit status.
    os.execvpe(sys.executable, [sys.executable, *engine_argv(launch)], environment)  # noqa: S606


if __name__ == "__main__":
    main()
