"""Build a corpus: run the stages of a recipe that are missing or out of date."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.claims import claimed
from corpus.file_digests import FileDigests
from corpus.filters.eval_items import EvalContent
from corpus.filters.filtering import Filtering
from corpus.filters.placeholder_key import find_key
from corpus.mixing.mix import run_mix
from corpus.mixing.mix_file import MixSource, recipe_invalid
from corpus.pairs.making import Pairing
from corpus.reading.pull_spec import PullSpec
from corpus.recipe import FILTERED, GENERATED, PAIRS, PULLED, PULLED_ROWS, UNITS, CorpusRecipe, GenerateSection
from corpus.shards import read_index
from corpus.sources import find_files
from corpus.stages import BuildState, CorpusStage, StageAction, key_of
from corpus.units.extraction import Extraction
from shared.settings import Settings, read_settings

if TYPE_CHECKING:
    from corpus.generation.generating import Generation
    from corpus.reading.pull import PullReport

STAGES = ("pull", "extract", "pairs", "generate", "filter", "mix")
DIGESTS_NAME = "digests.json"
PULL_REASON, CHECKED_LATER = "the table may have new rows", "depends on earlier stages"


def build(
    recipe: CorpusRecipe,
    path: Path,
    *,
    to: str = STAGES[-1],
    dry_run: bool = False,
    evals: Sequence[EvalContent] = (),
    note_pull: Callable[[PullReport, Path], object] = lambda _report, _folder: None,
) -> Iterator[StageAction]:
    """Run the stages up to and including ``to``; yield each action before it is carried out.

    Args:
        path: the recipe's path; paths in the recipe are relative to its folder.
        to: the last stage.
        dry_run: whether only to yield the actions.
        evals: evals whose items must not be in the output.
        note_pull: called with the outcome of the pull and its folder.

    Raises:
        MensError: the stage's error. The stages before it stay done.
    """
    spec = None if recipe.pull is None else PullSpec.of(recipe.pull, path.parent)
    steps = _Build(recipe, path, spec, dry_run=dry_run, evals=evals, note_pull=note_pull)
    with ExitStack() as stack:
        if not dry_run:
            stack.enter_context(claimed(steps.work, is_folder=True))
        for name in STAGES[: STAGES.index(to) + 1]:
            yield from steps.actions(name)
        if not dry_run:
            steps.digests.save()


@dataclass
class _Build:
    """One build.

    Attributes:
        is_open: whether a stage was skipped (as in a dry run), so that the later stages cannot be decided.
    """

    recipe: CorpusRecipe
    path: Path
    spec: PullSpec | None
    dry_run: bool
    evals: Sequence[EvalContent]
    note_pull: Callable[[PullReport, Path], object]
    is_open: bool = False

    @cached_property
    def digests(self) -> FileDigests:
        """Digests of the inputs and outputs that have not changed since the last build."""
        return FileDigests(self.work / DIGESTS_NAME)

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def work(self) -> Path:
        return self.folder / self.recipe.work

    def actions(self, name: str) -> Iterator[StageAction]:
        """Carry out a stage."""
        recipe = self.recipe
        if name == "pull" and self.spec:
            yield from self._pull(self.spec)
        elif name == "extract" and recipe.extract:
            paths = tuple(self.folder / path for path in recipe.extract.paths)
            languages = tuple(dict.fromkeys(recipe.extract.language))
            yield from self._run(Extraction(paths, languages, recipe.extract.license), UNITS)
        elif name == "generate" and recipe.generate:
            yield from self._run(self._generation(recipe.generate), GENERATED)
        elif self.is_open and (
            (name == "pairs" and recipe.extract) or (name == "filter" and recipe.filters) or name == "mix"
        ):
            yield StageAction(name, True, CHECKED_LATER)
        elif name == "pairs" and recipe.extract:
            yield from self._run(Pairing((self.work / UNITS,), tuple(recipe.pairs.rules)), PAIRS)
        elif name == "filter" and recipe.filters:
            for target, _, stage in self._filterings():
                if stage:
                    yield from self._run(stage, target)
        elif name == "mix":
            yield from self._mix()

    def _generation(self, section: GenerateSection) -> Generation:
        # Imported by recipes that generate: the clients and graders of models take 17 MB.
        from corpus.generation.generating import Generation

        stage = Generation(self.folder / section.recipe, section.rows)
        if stage.recipe.models:
            raise recipe_invalid(
                f"{section.recipe} has columns that models write, which a build does not support. Run `mens "
                f"generate-data {section.recipe}`, then name its folder in "
                "`mix.sources`.",
                "generate.recipe",
                None,
            )
        return stage

    def _run(self, stage: CorpusStage, target: str) -> Iterator[StageAction]:
        """Run a stage if it is not done."""
        state = BuildState(self.work, self.digests.of)
        action = state.decide(stage, self.work / target)
        yield action
        self.is_open = self.is_open or (self.dry_run and action.runs)
        if action.runs and not self.dry_run:
            if isinstance(stage, Filtering):
                # Timestamps of files decide whether a stage runs; the files that it reads are compared by content.
                stage = stage.with_content_digests()
            stage.run(self.work / target, key_of(stage))
            state.note(stage)

    def _pull(self, spec: PullSpec) -> Iterator[StageAction]:
        """Add new rows, and write the newest version of each."""
        # Imported by recipes that pull: SQLAlchemy takes 11 MB.
        from corpus.reading.addresses import find_address
        from corpus.reading.newest import write_newest
        from corpus.reading.pull import pull

        target = self.work / PULLED
        yield StageAction("pull", True, "new" if read_index(target) is None else PULL_REASON)
        self.is_open = self.dry_run
        if self.dry_run:
            return
        address = find_address(spec.source, read_settings(Settings).corpus_sources, self.folder)
        key = find_key(spec.redact)
        report = pull(spec, address, target, redaction_key=key, rules_folder=self.folder, restart=True)
        write_newest(target, self.work / PULLED_ROWS)
        self.note_pull(report, target)

    def _filterings(self) -> Iterator[tuple[str, MixSource, Filtering | None]]:
        """Yield, for each source of the mix, its folder, the source, and its filter stage; None for a source that only
        the mix can check.
        """
        filters = self.recipe.filters
        for number, source in enumerate(self.recipe.mix_with_sources().sources):
            files = find_files(self.folder / source.path, self.digests.of) if filters and source.weight > 0 else None
            stage = None
            if filters and files:
                redact = tuple(filters.personal_data)
                stage = Filtering(files, source.path, filters.secrets, redact, self.folder, makes_key=not self.dry_run)
            yield f"{FILTERED}/{number:02d}", source, stage

    def _mix(self) -> Iterator[StageAction]:
        mix = self.recipe.mix_with_sources()
        if self.recipe.filters:
            paths = [
                f"{self.recipe.work}/{target}" if stage else source.path for target, source, stage in self._filterings()
            ]
            sources = [
                source_of_mix.model_copy(update={"path": path})
                for source_of_mix, path in zip(mix.sources, paths, strict=True)
            ]
            mix = mix.model_copy(update={"sources": sources})
        before = run_mix(mix, self.path, evals=self.evals, dry_run=True, digest=self.digests.of)
        reason = "done" if before.unchanged else "input changed" if before.output.is_file() else "new"
        yield StageAction("mix", not before.unchanged, reason)
        if not before.unchanged and not self.dry_run:
            run_mix(mix, self.path, evals=self.evals)
