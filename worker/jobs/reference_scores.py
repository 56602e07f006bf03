"""Reference scores: the trainer's token ids and scores on the weights that a replica serves, for comparison with the
replica's.

Scores are computed once per attempt for a base and dtype, however many replicas there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.base_models.catalog import load_catalog
from shared.contract.plan import PlannedBase
from shared.contract.sections import DeviceSection
from shared.errors import ArtifactInvalid, Code
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer
from worker.jobs.attempt import Attempt
from worker.jobs.certificates import Scores, ServedBase
from worker.jobs.child_process import ChildProcess, trainer_threads
from worker.probe_chats import EncodedChats, encode_chats
from worker.run_folder import ADAPTER_FOLDER, PLAN_NAME, PROBES_NAME, SCORES_NAME, ScoreRun, read_json

PROGRAM = "worker.score"
PARITY_FOLDER = "parity"
"""Folder in the attempt's run folder, with one folder for each base and dtype that replicas serve."""


@dataclass
class ReferenceScores:
    """The trainer's token ids and scores for an adapter.

    Args:
        attempt: the attempt that publishes.
        base: the base that was trained on.
        device: the device of the contract.
        run_dir: folder of the run that made the adapter.
        template_arguments: template arguments of the adapter's chats.
    """

    attempt: Attempt
    base: PlannedBase
    device: DeviceSection
    run_dir: Path
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    _folders: dict[str, Path] = field(default_factory=dict)

    def encode_chats(self) -> EncodedChats:
        """Return the trainer's token ids of the probe chats, with the exact base that was trained on."""
        return encode_chats(Tokenizer.load(self._folder(self.base), ChatOptions(self.template_arguments)))

    def scores(self, served: ServedBase) -> Scores:
        """Return scores by transformers and peft on the served weights, in the served dtype.

        Raises:
            ArtifactInvalid: ``BASE_DIGEST_MISMATCH``: the catalogue has another base under that name.
        """
        folder = self.attempt.run_dir / PARITY_FOLDER / f"{served.digest[:16]}-{served.dtype}"
        if not (folder / SCORES_NAME).is_file():
            run = ScoreRun(
                base=str(self._served_folder(served)),
                adapter=str(self.run_dir / ADAPTER_FOLDER),
                probes=str(self.run_dir / PROBES_NAME),
                dtype=served.dtype,
                device=self.device,
            )
            folder.mkdir(parents=True, exist_ok=True)
            (folder / PLAN_NAME).write_text(run.model_dump_json(indent=2))
            threads = trainer_threads(self.attempt.settings.trainer_threads, Path(run.base))
            self.attempt.follow(ChildProcess(PROGRAM, folder, threads=threads))
        scores: Sequence[Sequence[float]] = (read_json(folder / SCORES_NAME) or {})["scores"]
        return scores

    def _served_folder(self, served: ServedBase) -> Path:
        """Return the folder of the base that a replica serves, by this worker's catalogue."""
        entry = load_catalog(self.attempt.settings.catalog_path).get(served.name)
        if entry.digest != served.digest:
            raise ArtifactInvalid(
                Code.BASE_DIGEST_MISMATCH,
                f"A replica serves a {served.name} that differs from the one in this worker's catalogue.",
                remedy="Use one catalogue for all tiers, and restart a replica after replacing its base.",
                param=served.name,
            )
        return self._folder(PlannedBase(name=entry.name, digests=entry.digests))

    def _folder(self, base: PlannedBase) -> Path:
        # Located once, because that verifies it: hashing a large base takes a while.
        if base.name not in self._folders:
            self._folders[base.name] = self.attempt.locate_base(base)
        return self._folders[base.name]
