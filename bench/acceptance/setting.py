"""Environment of a stage and of the processes of its parts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.acceptance.results import PartResult
from bench.harness.processes import Processes
from bench.training.recipe import InputsRequest, Trainers
from bench.training.shapes import SHAPES
from worker.jobs.child_environment import ALLOCATOR


@dataclass(frozen=True)
class Setting:
    """Environment of a stage.

    Attributes:
        size: base of the speed stage, a name in ``SHAPES``.
        smoke: whether to use the smallest sizes, which a CPU can compute too.
        processes: processes that run the parts.
        folder: folder for inputs and run folders.
    """

    device: str
    size: str
    smoke: bool
    processes: Processes
    folder: Path

    def part(self, module: str, part: str, *arguments: str) -> PartResult:
        """Run a part of one of this package's programs in a separate process."""
        output = self.processes.run(
            Path(sys.executable),
            f"bench.acceptance.{module}",
            part,
            self.device,
            *arguments,
            OMP_NUM_THREADS="1",
            **ALLOCATOR,
        )
        return PartResult.read(output)

    def parts(self, module: str, names: Iterable[str], *arguments: str) -> dict[str, Callable[[], PartResult]]:
        """Return all parts of a program."""
        return {name: partial(self.part, module, name, *arguments) for name in names}

    def trainers(self, size: str, *, rows_per_batch: int, grad_accum: int, steps: int) -> Trainers:
        """Make a base with random weights and rows for this many steps; peers run in this environment."""
        request = InputsRequest(
            base=SHAPES[size],
            rows=rows_per_batch * grad_accum * steps,
            held_out_rows=2 if self.smoke else 4,
            execution={
                "batch_size": rows_per_batch,
                "grad_accum": grad_accum,
                "seq_len": 128 if self.smoke else 2048,
                "checkpoint_every": steps // 2 + 1,
            },
            device=self.device,
        )
        return Trainers(self.processes, self.folder, request, threads=1, peers=Path(sys.executable))
