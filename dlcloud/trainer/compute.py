"""What one worker computes of one step: its parts of the batch, forward and backward, into the exchange."""

import hashlib
from collections.abc import Sequence

import torch

from .batches import PART, Batches, Part, Turn, moved, seed_everything
from .exchange import Exchange, Send, Sums
from .job import Job
from .sampler import Sampler, chunks, divide, key, share


class Compute:
    """The gradients of a step, of which every worker computes its share.

    Args:
        job: What is trained.
        run: Name of the run; with the settings it makes the fingerprint that all workers must share.
    """

    def __init__(self, job: Job, run: str) -> None:
        self._job = job
        self.fingerprint = _fingerprint(job, run)
        self._sampler = Sampler(samples=len(job.dataset), batch=job.batch, seed=job.seed)
        self._exchange = Exchange(job.model, fingerprint=self.fingerprint)
        flat = self._exchange.flat
        self._rows = flat.new_zeros((job.shards, len(flat))) if job.shards else None
        self._batches = Batches(
            dataset=job.dataset, divide=self._parts, seed=job.seed, loading=job.loading, collate=job.collate
        )

    def samples(self, step: int) -> int:
        """Return how many samples a step has."""
        return len(self._sampler.batch_of(step))

    def share(self, turn: Turn) -> tuple[int, int]:
        """Return which places of the batch are this worker's: [first, end)."""
        parts = [part for part in self._parts(turn) if part.samples]
        if not parts:
            return 0, 0
        return parts[0].start, parts[-1].start + len(parts[-1].samples)

    def begin(self, turn: Turn, send: Send, *, leaving: bool, lineage: int) -> None:
        """Compute this worker's share and send it to be summed.

        Args:
            turn: The step, and this worker's place in it.
            send: Begins the sum over all workers of what it is given, in place.
            leaving: This worker leaves after the step.
            lineage: Of the state that the step begins with.
        lineage: Of the state that the step begins with.
        """
        self._job.model.train()
        self._exchange.begin()
        if self._rows is None:
            self._whole(turn, send)
            self._exchange.finish(leaving=leaving, lineage=lineage)
            self._exchange.send_rest(send)
        else:
            mine = self._sharded(turn, self._rows)
            # What each says once goes into the first of its rows; one without rows says it in the last.
            self._exchange.clear()
            self._exchange.finish(leaving=leaving, lineage=lineage)
            self._rows[mine.start if mine else -1] += self._exchange.flat
            send(self._rows)

    def sums(self) -> Sums:
        """Return what the step came to, once all is summed."""
        if self._rows is not None:
            # Row by row, in order and from +0: so every bit is that of a single worker, which adds the same
            # numbers to the same zeros.
            self._exchange.clear()
            for row in self._rows:
                self._exchange.flat.add_(row)
        return self._exchange.sums()

    def apply(self) -> None:
        """Make the model ready for the optimizer."""
        self._exchange.apply()

    def undo(self) -> None:
        """Forget the step."""
        self._exchange.restore()

    def _whole(self, turn: Turn, send: Send) -> None:
        total = self.samples(turn.step)
        end = self.share(turn)[1]
        for part, batch in self._batches.of(turn):
            final = part.start + len(part.samples) == end
            self._part(turn, part, batch, total, send if final else None)

    def _sharded(self, turn: Turn, rows: torch.Tensor) -> range:
        """Fill the rows that are this worker's and return which they are."""
        total, job = self.samples(turn.step), self._job
        rows.zero_()
        mine = share(job.shards or 1, turn.rank, turn.size)
        # Of parts that begin at one place only the last one is not empty, and it is the one that is kept.
        numbers = {part.start: number for part, number in zip(self._parts(turn), mine, strict=True)}
        for part, batch in self._batches.of(turn):
            self._exchange.clear()
            self._part(turn, part, batch, total, None)
            rows[numbers[part.start]].copy_(self._exchange.flat)
        return mine

    def _part(self, turn: Turn, part: Part, batch: object, total: int, send: Send | None) -> None:
        weight = len(part.samples) / total
        seed_everything(key(self._job.seed, PART, turn.step, part.start))
        self._exchange.begin_part(send)
        loss = self._job.loss(self._job.model, moved(batch, self._exchange.flat.device))
        if loss.numel() != 1:
            raise ValueError(f"loss must return the mean over the samples, not a tensor of {loss.numel()}")
        (loss * weight).backward()
        last = part.start + len(part.samples) == total
        with torch.no_grad():
            self._exchange.end_part(weight, loss.detach(), last=last)

    def _parts(self, turn: Turn) -> list[Part]:
        batch, job = self._sampler.batch_of(turn.step), self._job
        if job.shards:
            mine = share(job.shards, turn.rank, turn.size)
            return _placed(0, divide(batch, job.shards))[mine.start : mine.stop]
        taken = share(len(batch), turn.rank, turn.size)
        return _placed(taken.start, chunks(batch[taken.start : taken.stop], job.micro_batch))


def _placed(start: int, pieces: list[Sequence[int]]) -> list[Part]:
    parts = []
    for piece in pieces:
        parts.append(Part(start, piece))
        start += len(piece)
    return parts


def _fingerprint(job: Job, run: str) -> int:
    """Return 32 bits of all that must be equal for gradients to be summed."""
    shapes = [(name, tuple(each.shape), str(each.dtype)) for name, each in job.model.state_dict().items()]
    settings = (run, job.batch, job.seed, job.shards, len(job.dataset), type(job.optimizer).__name__, shapes)
    return int.from_bytes(hashlib.blake2b(repr(settings).encode(), digest_size=4).digest(), "big")
