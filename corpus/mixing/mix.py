"""Mix sources into one training file.

    1  each part of a source becomes a piece (`pieces.py`): the rows that its weight keeps, sorted by their place
    2  duplicates, held-out rows and shares are decided from fingerprints and places only
    3  range by range of places, the rows that stay are read from all pieces, sorted and written

Parts are distributed among processes and their results are taken in order; the place of a row depends only on the seed
and its id. So the output is the same for any number of processes. The report is removed first and written last: a mix
without it is not finished.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from corpus.claims import claimed
from corpus.file_digests import DigestOf
from corpus.filters.contamination import EvalIndex, loaded
from corpus.filters.eval_items import EvalContent, read_items
from corpus.keys import stage_key, stage_mark
from corpus.mixing.mix_file import Mix
from corpus.mixing.mix_report import (
    MixReport,
    is_current,
    read_report,
    report_path,
)
from corpus.mixing.mix_run import EVALS_NAME, MixRun
from corpus.mixing.mixed_sources import (
    find_source,
    refuse_own_output,
)
from shared.datasets.file_parts import reading_processes
from shared.hashing import digest_file
from shared.host import disk_errors

VERSION = 1
"""Increase this when the same mix of the same sources would give different bytes."""
WORK_SUFFIX = ".mix_work"


@dataclass(frozen=True, slots=True)
class MixResult:
    """Outcome of a mix.

    Attributes:
        unchanged: whether the output already existed, made from the same inputs, so that nothing was written.
    """

    report: MixReport
    output: Path
    unchanged: bool


def run_mix(
    mix: Mix,
    config: Path,
    *,
    root: Path | None = None,
    strict: bool = True,
    evals: Sequence[EvalContent] = (),
    dry_run: bool = False,
    digest: DigestOf = digest_file,
) -> MixResult:
    """Mix the sources of a mix file, and write output, provenance, metadata and report.

    Args:
        config: the mix file's path, for the report.
        root: folder that paths in the mix file start from; the mix file's own folder by default.
        evals: evals whose items must not be in the output, in addition to the files that the mix names.
        strict: whether a missing or empty source that is not optional is an error. An empty output is always an error.

        dry_run: whether to return before anything is written.
        digest: function that digests the sources and the earlier output.
    """
    folder = root or config.parent
    output = Path(os.path.normpath(folder / mix.output))
    # Before the report is read, which another mix would change.
    with ExitStack() as stack:
        if not dry_run:
            stack.enter_context(claimed(output, is_folder=False))
        return _mix(mix, config, folder, output, strict=strict, evals=evals, dry_run=dry_run, digest=digest)


def _mix(
    mix: Mix,
    config: Path,
    folder: Path,
    output: Path,
    *,
    strict: bool,
    evals: Sequence[EvalContent],
    dry_run: bool,
    digest: DigestOf,
) -> MixResult:
    sources = [find_source(spec, folder, strict=strict, digest=digest) for spec in mix.sources]
    for source in sources:
        refuse_own_output(source, output)
    files = mix.decontaminate.files if mix.decontaminate else []
    unwanted = [*(read_items(folder / name) for name in files), *evals]
    settings = mix.model_dump(mode="json", exclude={"output"}) | {"evals": [content.digest() for content in unwanted]}
    report = MixReport(
        config_path=str(config),
        output_path=mix.output,
        strict=strict,
        config_fingerprint=stage_key("mix", VERSION, settings, {}),
        sources=[source.report for source in sources],
    )
    if is_current(before := read_report(report_path(output)), report, output.parent, digest):
        assert before is not None
        return MixResult(before, output, unchanged=True)
    if dry_run:
        return MixResult(report, output, unchanged=False)
    key = stage_key("mix", VERSION, settings, {str(n): s.files.fingerprint for n, s in enumerate(sources) if s.files})
    work = output.with_name(output.stem + WORK_SUFFIX)
    with disk_errors():
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
    try:
        total = sum(source.files.bytes for source in sources if source.files)
        # The processes first: they are forked, and fingerprints would start threads.
        with reading_processes(total) as executor:
            if unwanted:
                EvalIndex.of(unwanted).save(work / EVALS_NAME)
            MixRun(mix, sources, report, output, work, stage_mark("mix", key), total, executor).run()
    finally:
        shutil.rmtree(work, ignore_errors=True)
        loaded.cache_clear()  # the next mix may have another index in the same place
    return MixResult(report, output, unchanged=False)
