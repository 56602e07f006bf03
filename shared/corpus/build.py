"""Build a corpus: run the stages of a recipe that are missing or out of date."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from shared.corpus.claims import claimed
from shared.corpus.filters.contamination import EvalContent
from shared.corpus.mixing.mix import run_mix
from shared.corpus.pairs.making import Pairing
from shared.corpus.reading.addresses import find_address
from shared.corpus.reading.newest import write_newest
from shared.corpus.reading.pull import PullReport, pull
from shared.corpus.reading.pull_spec import PullSpec
from shared.corpus.recipe import PAIRS, PULLED, PULLED_ROWS, UNITS, CorpusRecipe
from shared.corpus.shards import read_index
from shared.corpus.stages import BuildState, CorpusStage, StageAction, key_of
from shared.corpus.units.extraction import Extraction
from shared.settings import Settings, read_settings

STAGES = ("pull", "extract", "pairs", "mix")
PULL_REASON, CHECKED_LATER = "the table may have new rows", "depends on the stages before"


def build(
    recipe: CorpusRecipe,
    path: Path,
    *,
    to: str = STAGES[-1],
    dry_run: bool = False,
    evals: Sequence[EvalContent] = (),
    note_pull: Callable[[PullReport, Path], object] = lambda _report, _folder: None,
) -> Iterator[StageAction]:
    """Run the stages up to one of them; yield each action before it is carried out.

    Args:
        path: of the recipe; its folder is where paths start.
        to: the last stage.
        dry_run: whether only to yield the actions.
        evals: whose items must not be in the output.
        note_pull: is called with the outcome of the pull and its folder.

    Raises:
        MensError: the stage's error. The stages before it stay done.
    """
    work = path.parent / recipe.work
    spec = None if recipe.pull is None else PullSpec.of(recipe.pull, path.parent)
    with ExitStack() as stack:
        if not dry_run:
            stack.enter_context(claimed(work, is_folder=True))
        yield from _stages(recipe, path, spec, to, dry_run=dry_run, evals=evals, note_pull=note_pull)


def _stages(
    recipe: CorpusRecipe,
    path: Path,
    spec: PullSpec | None,
    to: str,
    *,
    dry_run: bool,
    evals: Sequence[EvalContent],
    note_pull: Callable[[PullReport, Path], object],
) -> Iterator[StageAction]:
    folder = path.parent
    work = folder / recipe.work
    wanted = STAGES[: STAGES.index(to) + 1]
    # A dry run does not carry out an action, so the stages after it cannot be decided.
    is_open = False
    if spec is not None and "pull" in wanted:
        yield StageAction("pull", True, "new" if read_index(work / PULLED) is None else PULL_REASON)
        is_open = dry_run
        if not dry_run:
            note_pull(_pull(spec, folder, work), work / PULLED)
    for name in ("extract", "pairs"):
        if recipe.extract and name in wanted:
            if is_open and name == "pairs":
                yield StageAction(name, True, CHECKED_LATER)
                continue
            stage, target = _stage(recipe, name, folder, work)
            state = BuildState(work)
            action = state.decide(stage, target)
            yield action
            is_open = is_open or (dry_run and action.runs)
            if action.runs and not dry_run:
                stage.run(target, key_of(stage))
                state.note(stage)
    if "mix" in wanted:
        if is_open:
            yield StageAction("mix", True, CHECKED_LATER)
            return
        mix = recipe.mix_with_sources()
        before = run_mix(mix, path, evals=evals, dry_run=True)
        reason = "done" if before.unchanged else "input changed" if before.output.is_file() else "new"
        yield StageAction("mix", not before.unchanged, reason)
        if not before.unchanged and not dry_run:
            run_mix(mix, path, evals=evals)


def _pull(spec: PullSpec, folder: Path, work: Path) -> PullReport:
    """Add new rows, and write the newest version of each."""
    settings = read_settings(Settings)
    key = settings.corpus_key.get_secret_value().encode() or None
    address = find_address(spec.source, settings.corpus_sources, folder)
    report = pull(spec, address, work / PULLED, redaction_key=key, rules_folder=folder)
    write_newest(work / PULLED, work / PULLED_ROWS)
    return report


def _stage(recipe: CorpusRecipe, name: str, folder: Path, work: Path) -> tuple[CorpusStage, Path]:
    assert recipe.extract
    if name == "pairs":
        return Pairing((work / UNITS,), tuple(recipe.pairs.rules)), work / PAIRS
    paths = tuple(folder / one for one in recipe.extract.paths)
    return Extraction(paths, tuple(dict.fromkeys(recipe.extract.language)), recipe.extract.license), work / UNITS
