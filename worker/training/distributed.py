"""Several processes that train one model, each on its share of a step's rows, as started by torchrun.

Only a few LoRA matrices are trained, so the model needs no wrapper: every process divides its loss by the whole step's
weight sum and accumulates its gradients. These are added up over the processes once per step, and all processes make
the same optimizer step. The results equal those of one process up to rounding in fp32. In a single process the methods
do nothing and cost nothing.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import heapq
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from shared.errors import Code, JobFailed
from worker.child_runtime import PeerLost, is_out_of_memory, under_torchrun
from worker.training.metrics import Score

T = TypeVar("T")

PATIENCE = dt.timedelta(hours=1)
"""Longest wait of one process for another. It is long because the first process may encode a large file alone; a
process that has ended is noticed at once.
"""

# Fixed, because a collective needs tensors of one shape from all processes.
NOTE_BYTES = 128


@dataclass(frozen=True, slots=True)
class DistributedContext:
    """This process among the processes of its run.

    Attributes:
        rank: counted from 0; the first process writes the run's files.
        size: processes of the run.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: torch.device) -> DistributedContext:
        """Join the other processes that torchrun started; return a single-process context without torchrun.

        Scores and counts are exchanged between CPUs, gradients between the devices they are on.

        Raises:
            JobFailed: ``SETTINGS_INVALID``: there are more processes than GPUs.
            PeerLost: another process did not join.
        """
        if not under_torchrun():  # a cluster may set RANK and WORLD_SIZE for reasons of its own
            return cls()
        distributed = cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        if distributed.size == 1:
            return cls()
        on_gpu = device.type == "cuda"
        if on_gpu:
            _claim(device)
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        # Given a device, NCCL connects now, before memory is full.
        with_device = device if on_gpu else None
        _with_peers(lambda: dist.init_process_group(backend, timeout=PATIENCE, device_id=with_device))
        return distributed

    def leave(self) -> None:
        """Leave the process group at the end of a run that did not fail."""
        if self.size > 1:
            dist.destroy_process_group()

    @property
    def is_main(self) -> bool:
        """Return true if this process writes the run's files."""
        return self.rank == 0

    def share(self, lengths: Sequence[int]) -> list[int]:
        """Return this process's rows as places in ``lengths`` (tokens), in ascending order; may be empty."""
        return share_rows(lengths, self.size)[self.rank]

    def main_process_first(self, work: Callable[[], T]) -> T:
        """Let the first process work while the others wait; they then use its results from a cache."""
        if not self.is_main:
            self.barrier()
        result = work()
        if self.is_main:
            self.barrier()
        return result

    def barrier(self) -> None:
        """Wait until all processes have arrived here."""
        self.sum([0.0])

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sum each number over all processes, in fp64."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def smallest(self, value: int) -> int:
        """Return the smallest value over all processes."""
        return -int(self.largest([-value])[0])

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return the largest value over all processes, for each number."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def total(self, score: Score) -> Score:
        """Return the total score of all processes' shares of a step; every share's loss is already divided by the whole
        step's divisor.
        """
        if self.size == 1:
            return score
        counted = [score.loss, score.accuracy * score.targets, score.targets]
        loss, correct, targets, *sums = self.sum([*counted, *score.sums.values()])
        return Score(loss, round(correct) / targets, int(targets), dict(zip(score.sums, sums, strict=True)))

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Add up the gradients of all processes; a parameter without a gradient anywhere stays without one.

        It uses one flat copy, which is small compared with the activations, already released by then.
        """
        if self.size == 1:
            return
        # Zeros for missing gradients, because all processes must send the same number of values.
        gradients = [torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in parameters]
        there = gradients[0].new_tensor([tensor.grad is not None for tensor in parameters])
        flat = torch.cat([*(tensor.flatten() for tensor in gradients), there])
        _all_reduce(flat, dist.ReduceOp.SUM)
        *summed, there = flat.split([*(tensor.numel() for tensor in gradients), len(gradients)])
        for parameter, gradient, processes in zip(parameters, summed, there.tolist(), strict=True):
            parameter.grad = gradient.view_as(parameter) if processes else None

    def refuse_difference(self, facts: Mapping[str, str]) -> None:
        """Check that all processes work with the same inputs.

        Args:
            facts: strings that must be equal, by name; every process passes the same names.

        Raises:
            JobFailed: ``PROCESSES_DIFFER``, in every process, with the names of the differences.
        """
        if self.size == 1:
            return
        digests = [int.from_bytes(hashlib.sha256(fact.encode()).digest()[:8], signed=True) for fact in facts.values()]
        mine = torch.tensor(digests)
        # Every process gets the facts of all, so that each raises its own error and none waits for a process that has
        # already raised one.
        of_all = [torch.empty_like(mine) for _ in range(self.size)]
        _with_peers(lambda: dist.all_gather(of_all, mine))
        differs = [
            name for index, name in enumerate(facts) if len({int(process_facts[index]) for process_facts in of_all}) > 1
        ]
        if differs:
            raise JobFailed(
                Code.PROCESSES_DIFFER,
                f"The {self.size} processes of this run do not have the same {' and '.join(differs)}.",
                remedy="Run the job again; if it happens again, set MENS_TRAINER_PROCESSES to 1 and report it.",
                details={"differs": differs},
            )

    def gather(self, note: str) -> list[str]:
        """Return a short ASCII string of every process, by rank.

        Args:
            note: the string, which is cut after ``NOTE_BYTES`` characters.
        """
        if self.size == 1:
            return [note]
        mine = torch.tensor(list(note.encode("ascii", "replace")[:NOTE_BYTES].ljust(NOTE_BYTES)), dtype=torch.uint8)
        of_all = [torch.empty_like(mine) for _ in range(self.size)]
        _with_peers(lambda: dist.all_gather(of_all, mine))
        return [bytes(characters.tolist()).decode().rstrip() for characters in of_all]

    def seed_step(self, seed: int, step: int) -> None:
        """Reseed the random generators, which draw dropout masks, for this process's part of a step.

        So no two processes draw the same masks, and a run that resumes from the first process's checkpoint draws the
        same masks again.
        """
        if self.size > 1:
            digest = hashlib.sha256(f"step-{seed}-{step}-{self.rank}".encode()).digest()
            torch.manual_seed(int.from_bytes(digest[:8]))

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        _all_reduce(tensor, operation)
        return tensor.tolist()


def local_rank() -> int:
    """Return the index of this process's device on this machine."""
    return int(os.environ["LOCAL_RANK"]) if under_torchrun() else 0


def share_rows(lengths: Sequence[int], processes: int) -> list[list[int]]:
    """Distribute rows: the longest first, each to the process with the fewest tokens so far.

    No process gets more than a fair share plus the tokens of one row.

    Returns:
        for each process its rows, as places in ``lengths``, in ascending order; the same everywhere for the same
        lengths.
    """
    shares: list[list[int]] = [[] for _ in range(processes)]
    loads = [(0, rank) for rank in range(processes)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        tokens, rank = loads[0]
        shares[rank].append(index)
        heapq.heapreplace(loads, (tokens + lengths[index], rank))
    return [sorted(share) for share in shares]


def digest_of(tensors: Iterable[torch.Tensor]) -> str:
    """Return the SHA-256 over the tensors' values in fp32."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().float().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _claim(device: torch.device) -> None:
    if (device.index or 0) >= torch.cuda.device_count():
        raise JobFailed(
            Code.SETTINGS_INVALID,
            f"Process {device.index} of the trainer has no GPU of its own; this machine has "
            f"{torch.cuda.device_count()}.",
            remedy="Set MENS_TRAINER_PROCESSES to 0, which starts one process per GPU.",
        )
    torch.cuda.set_device(device)


def _all_reduce(tensor: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> None:
    _with_peers(lambda: dist.all_reduce(tensor, operation))


def _with_peers(talk: Callable[[], object]) -> None:
    """Exchange data with the other processes.

    Raises:
        PeerLost: another process has ended, or has not answered in time, for example because its machine vanished.
    """
    try:
        talk()
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise PeerLost(str(error)) from error
