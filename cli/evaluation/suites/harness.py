"""lm-evaluation-harness as a child process that sends its requests to the API, like any other client of it. Start reading here.

The harness builds the prompts, counts their tokens with the base's own tokenizer, and calls ``/v1/completions``: for
log-probabilities of given strings with ``echo`` and prompts as token ids, otherwise for answers.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import Code, JobFailed

LOG_NAME = "harness.log"
LAST_LINES = 12
PROGRESS = re.compile(rb"Requesting API: .*?(\d+)/(\d+) ")
PASSED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "NO_PROXY",
    "no_proxy",
)
PASSED_ONLINE = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "HF_ENDPOINT", "HF_TOKEN", "HF_HOME")
"""Variables for fetching tasks from a hub. Without ``--online`` nothing is fetched."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SuiteRun:
    """Settings of a run, the same for every model.

    Attributes:
        tasks: the harness's task names.
        folder: folder of the user's own tasks; their data files are relative to it. None: the harness's tasks only.
        tokenizer: the base's folder.
        max_length: tokens of a prompt and its answer; longer prompts lose their beginning.
        chat: whether prompts go through the base's chat template.
        shots: examples before each question; None: the task's default.
        limit: number of first items of each task; None: all.
        concurrency: requests at a time.
        online: whether tasks may be fetched from a hub.
    """

    tasks: Sequence[str]
    folder: Path | None
    tokenizer: Path
    max_length: int
    chat: bool = False
    shots: int | None = None
    limit: int | None = None
    concurrency: int = 8
    online: bool = False


def command(python: Path, run: SuiteRun, model: str, url: str, output: Path) -> list[str]:
    """Return the harness's command line. It does not contain the key, since any user of the machine can read command
    lines.

    Args:
        python: interpreter of the harness's environment.
        model: a name that the API knows.
        url: URL of the API.
        output: folder for results and items.
    """
    arguments = {
        "model": model,
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(run.tokenizer.resolve()),
        "num_concurrent": str(run.concurrency),
        "max_length": str(run.max_length),
    }
    # Isolated: nothing is imported from our environment or from its working folder.
    line = [str(python), "-I", "-m", "lm_eval", "run", "--model", "local-completions"]
    line += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    line += ["--tasks", *run.tasks, "--log_samples", "--output_path", str(output.resolve())]
    line += ["--include_path", str(run.folder.resolve())] if run.folder else []
    line += ["--apply_chat_template"] if run.chat else []
    line += ["--num_fewshot", str(run.shots)] if run.shots is not None else []
    line += ["--limit", str(run.limit)] if run.limit is not None else []
    return line


def environment(key: str, cache: Path, *, online: bool, ours: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the child's environment: the key, a separate cache, and a few of our variables; no setting or secret of
    Mens.

    Args:
        key: key for the API.
        cache: a folder for cached data sets; online the user's own is used if it exists.
        online: whether hub requests are allowed.
        ours: the environment of this process.
    """
    passed = PASSED + (PASSED_ONLINE if online else ())
    variables = {"HF_HOME": str(cache)} | {name: ours[name] for name in passed if name in ours}
    offline = {} if online else {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
    return variables | offline | quiet | {"OPENAI_API_KEY": key}


def run_suite(
    line: Sequence[str], variables: Mapping[str, str], output: Path, folder: Path | None, progress: Progress
) -> None:
    """Run the harness to its end; its output goes to ``harness.log`` in the output folder.

    Args:
        line: command line from :func:`command`.
        variables: environment from :func:`environment`.
        output: folder to create.
        folder: working folder of the child, because tasks name their data files relative to it; None: the output
            folder.
        progress: called with the number of answered requests and their total.

    Raises:
        JobFailed: ``SUITE_FAILED``: the harness failed; the error has the last lines that it printed.
    """
    output.mkdir(parents=True, exist_ok=True)
    last: deque[str] = deque(maxlen=LAST_LINES)
    begun = b""
    with (
        (output / LOG_NAME).open("wb") as log,
        subprocess.Popen(
            line,
            env=dict(variables),
            cwd=folder or output,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A group of its own, so that an interruption ends all its processes.
            start_new_session=True,
        ) as child,
    ):
        assert child.stdout
        try:
            # A progress bar restarts its line with a carriage return.
            while chunk := os.read(child.stdout.fileno(), 65536):
                log.write(chunk)
                *lines, begun = re.split(rb"[\r\n]", begun + chunk)
                for text in lines:
                    if counts := PROGRESS.search(text):
                        progress(int(counts[1]), int(counts[2]))
                    elif text.strip():
                        last.append(text.decode(errors="replace"))
            code = child.wait()
        except BaseException:
            # Interrupted: the harness must not continue alone.
            os.killpg(child.pid, signal.SIGTERM)
            raise
    if code:
        said = "\n".join([*last, begun.decode(errors="replace")]).strip()
        raise JobFailed(
            Code.SUITE_FAILED,
            f"lm-evaluation-harness ended with exit code {code}:\n{said}",
            remedy=f"Its complete output is in {output / LOG_NAME}.",
        )
