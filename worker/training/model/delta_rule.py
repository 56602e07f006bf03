"""The gated delta rule of linear attention (arXiv 2412.06464), chunk by chunk, within documents that share a sequence.

The same formulas as transformers' reference, with two differences. The scan over chunks is one function with its own
gradient: only the step that carries a chunk's state to the next is sequential, and everything else is computed for all
chunks at once, so time and memory traffic grow linearly with the length of a row. And a document that begins in the
middle of a chunk does not see the previous document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

# As in transformers' reference.
CHUNK = 64
EPSILON = 1e-6
"""Added before the square root when queries and keys are normalised, as in the reference."""


@dataclass(frozen=True, slots=True)
class Documents:
    """Positions of a sequence that belong to the same document, by chunks of ``CHUNK`` positions.

    Attributes:
        hidden: (chunks, C, C), true where position i must not see position j; (C, C) if all is one document.
        starts: (chunks, C, 1), the place in the chunk at which the position's document begins; None: no boundaries.
        unread: (chunks, C, 1), whether the state before the chunk belongs to a different document from the position's.
        unwritten: (chunks, C, 1), whether the state after the chunk belongs to a different document from the position's.
        ended: (chunks, 1, 1), whether the states before and after the chunk belong to different documents.
    """

    hidden: Tensor
    starts: Tensor | None = None
    unread: Tensor | None = None
    unwritten: Tensor | None = None
    ended: Tensor | None = None

    @classmethod
    def within(cls, boundaries: Tensor | None, tokens: int, device: torch.device) -> Documents:
        """Read the boundaries, cumulative lengths (documents + 1,), without waiting for the device."""
        later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=device).triu(1)
        if boundaries is None or len(boundaries) == 2:
            return cls(later)
        positions = torch.arange(tokens + -tokens % CHUNK, device=device, dtype=boundaries.dtype)
        number = torch.searchsorted(boundaries[1:-1], positions, right=True).view(-1, CHUNK, 1)
        last, other = number[:, -1:], number != number.mT
        before = torch.cat([number[:1, :1], last[:-1]])
        # The first position that is of the same document: argmin returns the first of equal values.
        return cls(
            later | other, other.byte().argmin(-1, keepdim=True), number != before, number != last, last != before
        )

    def decays(self, log: Tensor) -> Decays:
        """Return the decays; zero where a document begins between the two places.

        Args:
            log: logarithms of the positions' decays, (rows · heads, chunks, C, 1).
        """
        if self.starts is None:
            total = log.cumsum(-2)
            end = total[..., -1:, :]
            return Decays(self._between(total), total.exp(), (end - total).exp(), end.exp())
        assert self.unread is not None and self.unwritten is not None and self.ended is not None
        # In fp64, so that an earlier document's decays do not affect the rounding of this document's decays.
        whole = log.double().cumsum(-2)
        first = self.starts.expand_as(whole)
        total = (whole - whole.gather(-2, first) + log.gather(-2, first)).float()
        end = total[..., -1:, :]
        masked = ((total, self.unread), (end - total, self.unwritten), (end, self.ended))
        return Decays(
            self._between(total), *(exponent.masked_fill(mask, float("-inf")).exp() for exponent, mask in masked)
        )

    def _between(self, total: Tensor) -> Tensor:
        return (total - total.mT).masked_fill_(self.hidden, float("-inf")).exp_()


def document_starts(boundaries: Tensor | None, tokens: int) -> Tensor | None:
    """Return the position at which each position's document starts, (tokens,); None if each row is one document."""
    if boundaries is None or len(boundaries) == 2:
        return None
    positions = torch.arange(tokens, device=boundaries.device, dtype=boundaries.dtype)
    return boundaries[torch.searchsorted(boundaries[1:-1], positions, right=True)]


class Decays(NamedTuple):
    """Products of decays in each chunk.

    Attributes:
        between: product from position j to position i, (…, C, C).
        reading: product from the chunk's start to a position, (…, C, 1).
        writing: product from a position to the chunk's end, (…, C, 1).
        through: product over the whole chunk, (…, 1, 1).
    """

    between: Tensor
    reading: Tensor
    writing: Tensor
    through: Tensor


def gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, boundaries: Tensor | None = None
) -> Tensor:
    """Return S·q at every position, where S ← S·exp(decay)·(1 - beta·k·kᵀ) + beta·v·kᵀ; computed in fp32.

    Queries and keys are normalised here.

    Args:
        query, key: (rows, tokens, heads, key size).
        value: (rows, tokens, heads, value size).
        decay: logarithms ≤ 0, (rows, tokens, heads).
        beta: (rows, tokens, heads).
        boundaries: boundaries of the documents in the one row: cumulative lengths, int32; None: each row is a document.

    Returns:
        (rows, tokens, heads, value size), in the dtype of the queries.
    """
    rows, tokens, heads, _ = value.shape
    documents = Documents.within(boundaries, tokens, value.device)
    q, k = (_normalised(tensor.float()) for tensor in (query, key))
    q = _by_chunks(q * q.shape[-1] ** -0.5)
    k, v = _by_chunks(k), _by_chunks(value.float())
    rate, log = (_by_chunks(tensor.float()[..., None]) for tensor in (beta, decay))
    output: Tensor = _Rule.apply(q, k, v, rate, log, documents)  # type: ignore[no-untyped-call]
    return output.view(rows, heads, -1, value.shape[-1])[:, :, :tokens].transpose(1, 2).to(query.dtype)


def _normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPSILON)


def _by_chunks(x: Tensor) -> Tensor:
    """Convert (rows, tokens, heads, size) to (rows · heads, chunks, C, size), with zeros after the last token."""
    rows, tokens, heads, size = x.shape
    padded = pad(x.transpose(1, 2), (0, 0, 0, -tokens % CHUNK))
    return padded.reshape(rows * heads, -1, CHUNK, size)


class _Rule(torch.autograd.Function):
    """The rule on chunks, (rows · heads, chunks, C, size), with a gradient of its own.

    Within a chunk the updates are one triangular system, whose solution is, for each position, the value that it would
    write into an empty state (`fresh`), and the key by which it reads what it replaces (`old`).
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, rate: Tensor, log: Tensor, documents: Documents
    ) -> Tensor:
        decays = documents.decays(log)
        similar, scores = key @ key.mT, query @ key.mT
        right = torch.cat([value * rate, key * (rate * decays.reading)], -1)
        solved = torch.linalg.solve_triangular(similar * rate * decays.between, right, upper=False, unitriangular=True)
        fresh, old = solved.split([value.shape[-1], key.shape[-1]], -1)
        before, written = _states(fresh, old, key * decays.writing, decays.through)
        ctx.save_for_backward(query, key, value, rate, *decays, similar, scores, solved, before, written)
        return (query * decays.reading) @ before + (scores * decays.between) @ written

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, rate, between, reading, writing, through, *rest = ctx.saved_tensors
        similar, scores, solved, before, written = rest
        old = solved[..., value.shape[-1] :]
        # The scan, backwards.
        after, d_fresh = _state_gradients(
            (scores * between).mT @ gradient, (query * reading).mT @ gradient, old, key * writing, through
        )
        d_reader, d_writer = gradient @ before.mT, written @ after.mT
        # The triangular system.
        d_solved = torch.cat([d_fresh, -(d_fresh @ before.mT)], -1)
        d_right = torch.linalg.solve_triangular((similar * rate * between).mT, d_solved, upper=True, unitriangular=True)
        d_values, d_keys = d_right.split([value.shape[-1], key.shape[-1]], -1)
        d_system = -(d_right @ solved.mT).tril_(-1) * between
        d_scores = (gradient @ written.mT) * between
        # The inputs of the system and of the scores.
        d_similar = d_system * rate
        d_query = d_reader * reading + d_scores @ key
        d_key = d_keys * (rate * reading) + d_writer * writing + (d_similar + d_similar.mT) @ key + d_scores.mT @ query
        d_keys_key = (d_keys * key).sum(-1, keepdim=True)
        d_rate = (d_values * value).sum(-1, keepdim=True) + d_keys_key * reading
        d_rate += (d_system * similar).sum(-1, keepdim=True)
        # The decays' exponents are sums of logarithms from the chunk's start.
        pairs = d_similar * similar + d_scores * scores
        written_by = (d_writer * key).sum(-1, keepdim=True) * writing
        read_by = ((d_reader * query).sum(-1, keepdim=True) + d_keys_key * rate) * reading
        d_total = pairs.sum(-1, keepdim=True) - pairs.sum(-2, keepdim=True).mT + read_by - written_by
        d_through = (before * after).sum((-1, -2), keepdim=True) * through
        d_total[..., -1:, :] += written_by.sum(-2, keepdim=True) + d_through
        d_log = d_total.flip(-2).cumsum(-2).flip(-2)
        return d_query, d_key, d_values * rate, d_rate, d_log, None


def _states(fresh: Tensor, old: Tensor, key: Tensor, through: Tensor) -> tuple[Tensor, Tensor]:
    """Return the state before each chunk, and the values that its positions write: value = fresh - old · state, and the
    next state is state · through + keyᵀ · value.
    """
    state = fresh.new_zeros(len(fresh), key.shape[-1], fresh.shape[-1])
    states, values = [], []
    for new, read, write, rest in zip(*(tensor.unbind(1) for tensor in (fresh, old, key, through)), strict=True):
        states.append(state)
        values.append(torch.baddbmm(new, read, state, alpha=-1))
        state = torch.baddbmm(state * rest, write.mT, values[-1])
    return torch.stack(states, 1), torch.stack(values, 1)


def _state_gradients(direct: Tensor, read: Tensor, old: Tensor, key: Tensor, through: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the state after each chunk and of the values written in it.

    Args:
        direct: gradient of the values through the outputs of their own chunk.
        read: gradient of the state before the chunk through the same outputs.
    """
    state = torch.zeros_like(read[:, 0])
    after, values = [], []
    steps = [tensor.unbind(1)[::-1] for tensor in (direct, read, old, key, through)]
    for value, own, past, write, rest in zip(*steps, strict=True):
        after.append(state)
        values.append(torch.baddbmm(value, write, state))
        state = torch.baddbmm(own + state * rest, past.mT, values[-1], alpha=-1)
    return torch.stack(after[::-1], 1), torch.stack(values[::-1], 1)
