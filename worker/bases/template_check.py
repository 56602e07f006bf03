"""Compares an imported adapter's chat template with its base's: ``python -m worker.bases.template_check plan.json run_dir/``.

A tenant's template is a foreign program: its loops, doubled values and filters can take any time and memory. So it runs
in this process alone, whose processor time and memory are limited; if the kernel supports it, the process also cannot
read other files, open network connections or start processes. It loads no weights and no torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from shared.contained import limits
from shared.errors import ArtifactInvalid, Code
from shared.sandbox import landlock, seccomp
from shared.sandbox.environment import readable_paths
from shared.tokenization.chat_template import ChatTemplate
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer
from worker.child_runtime import exit_with_worker, run_engine
from worker.probe_chats import CHATS, encode_chats, first_difference
from worker.run_folder import TemplateCheck

MAX_TEMPLATE_BYTES = 1 << 20
CPU_SECONDS = 30
"""Limit for rendering the few short chats, which takes a usual template some milliseconds."""
MEMORY_BYTES = 1 << 30
"""Limit on the memory that is allocated after the base's tokenizer was loaded."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code (`worker/child_runtime.py`)."""
    parser = argparse.ArgumentParser(prog="python -m worker.bases.template_check", description=__doc__)
    parser.add_argument("plan", type=Path, help="plan.json of the check")
    parser.add_argument("run_dir", type=Path, help="folder that receives the error")
    arguments = parser.parse_args(argv)
    exit_with_worker()
    check = TemplateCheck.model_validate_json(arguments.plan.read_text())
    return run_engine(partial(compare, check, arguments.run_dir), arguments.run_dir)


def compare(check: TemplateCheck, run_dir: Path) -> None:
    """Compare the tokens that both templates give for plain chats, within the limits.

    Raises:
        ArtifactInvalid: ``ADAPTER_TEMPLATE_MISMATCH``.
    """
    tokenizer = Tokenizer.load(Path(check.base), ChatOptions(check.arguments))
    with Path(check.template).open("rb") as file:
        source = file.read(MAX_TEMPLATE_BYTES).decode(errors="replace")
    limit_process()
    confine(run_dir)
    refuse_difference(tokenizer, source)


def limit_process() -> None:
    """Limit processor time and memory from now on: the kernel ends a process that exceeds the time, and refuses memory
    beyond the limit.
    """
    limits.limit_added_processor_time(CPU_SECONDS)
    limits.limit_added_memory(MEMORY_BYTES)
    limits.dump_nothing()


def confine(run_dir: Path) -> None:
    """Give up access to all files except the run folder and those that an import reads, and to the system calls that
    are forbidden to graders. Without Landlock or seccomp in the kernel, only the limits of time and memory apply, which
    is logged.
    """
    packages = [Path(__file__).parents[1], Path(__file__).parents[2] / "shared"]
    steps: dict[str, Callable[[], None]] = {
        "files": lambda: landlock.restrict_files([*readable_paths(), *packages], [run_dir]),
        "system calls": lambda: seccomp.apply(seccomp.item_program(threads=True)),
    }
    for name, step in steps.items():
        try:
            step()
        except OSError as error:
            print(f"the chat template's {name} are not confined: {error}", file=sys.stderr)


def refuse_difference(tokenizer: Tokenizer, source: str) -> None:
    """Refuse a template that gives different tokens from the base's for a plain chat, or that rejects a chat that the
    base's accepts.

    Raises:
        ArtifactInvalid: ``ADAPTER_TEMPLATE_MISMATCH``, with the first difference.
    """
    template = ChatTemplate(source, tokenizer.template.special_tokens, tokenizer.options.arguments)
    plain = [chat for chat in CHATS if chat.prompt and not chat.tools]
    own = {chat.name: ids for chat, ids in encode_chats(replace(tokenizer, template=template), plain).chats}
    for chat, served in encode_chats(tokenizer, plain).chats:
        if chat.name not in own:
            raise _mismatch(f"refuses the probe chat {chat.name!r}, which the base's accepts", {"chat": chat.name})
        if difference := first_difference(own[chat.name], served):
            where = (
                f"has token {difference['trainer_id']} at position {difference['position']} of the probe chat "
                f"{chat.name!r}"
            )
            raise _mismatch(f"{where}, but the base's has {difference['server_id']}", {"chat": chat.name, **difference})


def _mismatch(difference: str, details: dict[str, object]) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.ADAPTER_TEMPLATE_MISMATCH,
        f"The adapter's chat template {difference}; chats are served with the base's template.",
        remedy="Add a base whose folder has the adapter's chat_template.jinja, and import the adapter for that base.",
        param="template_file",
        details=details,
    )


if __name__ == "__main__":
    sys.exit(main())
