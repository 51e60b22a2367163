"""What one worker computes of one step: forward and backward passes of its share of the batch."""

import hashlib
from collections.abc import Sequence

import torch

from .allreduce import ReduceBuffer, ReducedTotals, Send
from .batches import MICROBATCH, Batches, Microbatch, WorkerStep, move_to_device, seed_everything
from .job import WorkerJob
from .sampler import Sampler, chunks, divide, key, share


class Compute:
    """Computes this worker's share of the gradients of a step.

    Attributes:
        fingerprint: Of run and settings; all workers must share it.
    """

    def __init__(self, job: WorkerJob, run: str) -> None:
        self._job = job
        self.fingerprint = _fingerprint(job, run)
        self._sampler = Sampler(samples=len(job.dataset), batch=job.batch, seed=job.seed)
        self._buffer = ReduceBuffer(job.model, fingerprint=self.fingerprint)
        flat = self._buffer.flat
        self._rows = flat.new_zeros((job.shards, len(flat))) if job.shards else None
        self._batches = Batches(
            dataset=job.dataset,
            divide=self._microbatches,
            seed=job.seed,
            loading=job.loading,
            collate=job.collate,
        )

    @property
    def reduced_bytes(self) -> int:
        """The bytes that each worker sums with the others in a step."""
        vector = self._buffer.flat if self._rows is None else self._rows
        return int(vector.nelement() * vector.element_size())

    def count_samples(self, step: int) -> int:
        return len(self._sampler.batch_of(step))

    def share(self, place: WorkerStep) -> tuple[int, int]:
        """Return this worker's range of places in the batch: [first, end)."""
        microbatches = [microbatch for microbatch in self._microbatches(place) if microbatch.samples]
        if not microbatches:
            return 0, 0
        return microbatches[0].start, microbatches[-1].start + len(microbatches[-1].samples)

    def begin(self, place: WorkerStep, send: Send, *, leaving: bool, lineage: int) -> None:
        """Compute this worker's share and send it to be summed.

        Args:
            place: The step, and this worker's place in it.
            send: Begins to sum a tensor over all workers, in place.
            leaving: This worker leaves after the step.
            lineage: Of the state that the step begins with.
        """
        self._job.model.train()
        self._buffer.begin()
        if self._rows is None:
            self._compute_whole(place, send)
            self._buffer.finish(leaving=leaving, lineage=lineage)
            self._buffer.send_rest(send)
        else:
            own = self._compute_shards(place, self._rows)
            # The counts of a worker go into the first of its rows; without a row, into the last of all.
            self._buffer.clear()
            self._buffer.finish(leaving=leaving, lineage=lineage)
            self._rows[own.start if own else -1] += self._buffer.flat
            send(self._rows)

    def reduced_totals(self) -> ReducedTotals:
        """Return the totals of the step, once all is summed."""
        if self._rows is not None:
            # Row by row, in order and from +0: so every bit is that of one worker, which adds the same
            # numbers to the same zeros.
            self._buffer.clear()
            for row in self._rows:
                self._buffer.flat.add_(row)
        return self._buffer.totals()

    def apply(self) -> None:
        self._buffer.apply()

    def undo(self) -> None:
        """Restore the running statistics that the step has changed; its sums may not have ended."""
        self._buffer.restore()
        self._buffer.renew()
        if self._rows is not None:
            self._rows = torch.zeros_like(self._rows)

    def _compute_whole(self, place: WorkerStep, send: Send) -> None:
        samples = self.count_samples(place.step)
        end = self.share(place)[1]
        for microbatch, batch in self._batches.of(place):
            final = microbatch.start + len(microbatch.samples) == end
            self._compute_microbatch(place, microbatch, batch, samples, send if final else None)

    def _compute_shards(self, place: WorkerStep, rows: torch.Tensor) -> range:
        """Fill this worker's rows and return their range."""
        samples, job = self.count_samples(place.step), self._job
        rows.zero_()
        own = share(job.shards or 1, place.rank, place.size)
        # Of microbatches that begin at one place only the last one is not empty, and it is the one kept.
        numbers = {
            microbatch.start: number
            for microbatch, number in zip(self._microbatches(place), own, strict=True)
        }
        for microbatch, batch in self._batches.of(place):
            self._buffer.clear()
            self._compute_microbatch(place, microbatch, batch, samples, None)
            rows[numbers[microbatch.start]].copy_(self._buffer.flat)
        return own

    def _compute_microbatch(
        self, place: WorkerStep, microbatch: Microbatch, batch: object, samples: int, send: Send | None
    ) -> None:
        weight = len(microbatch.samples) / samples
        seed_everything(key(self._job.seed, MICROBATCH, place.step, microbatch.start))
        self._buffer.begin_microbatch(send)
        loss = self._job.loss(self._job.model, move_to_device(batch, self._buffer.flat.device))
        if loss.numel() != 1:
            raise ValueError(f"loss must return the mean over the samples, not a tensor of {loss.numel()}")
        (loss * weight).backward()
        last = microbatch.start + len(microbatch.samples) == samples
        with torch.no_grad():
            self._buffer.end_microbatch(weight, loss.detach(), last=last)

    def _microbatches(self, place: WorkerStep) -> list[Microbatch]:
        batch, job = self._sampler.batch_of(place.step), self._job
        if job.shards:
            own = share(job.shards, place.rank, place.size)
            return _place(0, divide(batch, job.shards))[own.start : own.stop]
        taken = share(len(batch), place.rank, place.size)
        return _place(taken.start, chunks(batch[taken.start : taken.stop], job.micro_batch))


def _place(start: int, pieces: list[Sequence[int]]) -> list[Microbatch]:
    microbatches = []
    for piece in pieces:
        microbatches.append(Microbatch(start, piece))
        start += len(piece)
    return microbatches


def _fingerprint(job: WorkerJob, run: str) -> int:
    """Return 32 bits of everything that must be equal on workers whose gradients are summed."""
    shapes = [(name, tuple(value.shape), str(value.dtype)) for name, value in job.model.state_dict().items()]
    settings = (run, job.batch, job.seed, job.shards, len(job.dataset), type(job.optimizer).__name__, shapes)
    return int.from_bytes(hashlib.blake2b(repr(settings).encode(), digest_size=4).digest(), "big")
