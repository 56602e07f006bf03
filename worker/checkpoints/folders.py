"""Files that one attempt leaves to the next: complete checkpoint folders, and a merge's complete shards. No torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shared.durable_files import rename_durably
from worker.run_folder import (
    CHECKPOINTS_FOLDER,
    MERGE_PROGRESS_NAME,
    MODEL_FOLDER,
    list_checkpoints,
    read_json,
    write_json,
)


@contextmanager
def appearing_whole(target: Path) -> Iterator[Path]:
    """Yield a folder to write into, which is renamed to the target once everything is on disk; on failure it is removed
    completely.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    # Left by a process that was killed; in containers the ids of processes repeat.
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # on a full disk, reporting the error needs its space
        raise
    # A rename does not replace a folder that has files.
    shutil.rmtree(target, ignore_errors=True)
    rename_durably(temporary, target)


def remove_whole(folder: Path) -> None:
    """Remove a folder atomically: a concurrent copy finds it missing, never incomplete."""
    removed = folder.with_name(f".{folder.name}.removed")
    folder.rename(removed)
    shutil.rmtree(removed)


def adopt_checkpoints(resume: Path, run_dir: Path) -> Path:
    """Take over the checkpoint that a run resumes from, and those before it: they are part of its result.

    Args:
        resume: the checkpoint; it may already be in this run's folder.
        run_dir: run folder of the attempt that resumes.

    Returns:
        the checkpoint in ``run_dir``.

    Raises:
        FileNotFoundError: an attempt that was considered dead is still running and has just removed it.
    """
    for earlier in list_checkpoints(resume.parent.parent):
        if earlier.name < resume.name:
            # The other attempt removes old ones while it runs; only the newest is needed.
            with suppress(FileNotFoundError):
                _adopt(earlier, run_dir)
    return _adopt(resume, run_dir)


def adopt_shards(earlier: Path, run_dir: Path) -> int:
    """Give this attempt the shards that an earlier merge completed; the merge checks their digests.

    Args:
        earlier: run folder of the earlier attempt, which may still run; its files are linked and never changed.
        run_dir: run folder of this attempt.

    Returns:
        the number of shards that were taken over.
    """
    record = read_json(earlier / MERGE_PROGRESS_NAME) or {"files": {}}
    (run_dir / MODEL_FOLDER).mkdir(parents=True, exist_ok=True)
    adopted = 0
    for name in record["files"]:
        # A shard that is gone is written again.
        with suppress(FileNotFoundError):
            link_or_copy(earlier / MODEL_FOLDER / name, run_dir / MODEL_FOLDER / name)
            adopted += 1
    if adopted:
        write_json(run_dir / MERGE_PROGRESS_NAME, record)
    return adopted


def _adopt(checkpoint: Path, run_dir: Path) -> Path:
    adopted = run_dir / CHECKPOINTS_FOLDER / checkpoint.name
    if not adopted.exists():
        with appearing_whole(adopted) as temporary:
            for path in checkpoint.iterdir():
                link_or_copy(path, temporary / path.name)
    return adopted


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file that is never written again, so that ten attempts take the space of one; if linking is
    impossible, copy the file.
    """
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
