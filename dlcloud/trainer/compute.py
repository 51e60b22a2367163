"""What a worker computes of a step, and what all workers sum.

The loop calls `Compute.begin`: forward and backward passes of this worker's share of the batch. What the
workers sum lies in one flat vector, the `ReduceBuffer`: gradients, changes of running statistics, the loss,
checks of identity. So a step needs one all-reduce, or one per bucket of a large model: a bucket is reduced
while the gradients of the next are still computed. Gradients are summed, never averaged: every worker has
divided its losses by the global batch already. Once all is summed the loop applies the totals, or undoes the
step.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .batches import MICROBATCH, Batches, Microbatch, WorkerStep, move_to_device, seed_everything
from .job import WorkerJob
from .sampler import Sampler, aligned_chunks, chunks, divide, key, share

Send = Callable[[Tensor], None]


class Compute:
    """Computes this worker's share of the gradients of a step.

    Attributes:
        fingerprint: Of run and settings; all workers must share it.
    """

    def __init__(self, job: WorkerJob, run: str) -> None:
        self._job = job
        self.fingerprint = _fingerprint(job, run)
        samples = len(job.order(0)) if job.order else len(job.dataset)
        self._sampler = Sampler(samples=samples, batch=job.batch, seed=job.seed, order=job.order)
        self._buffer = ReduceBuffer(job.model, fingerprint=self.fingerprint)
        flat = self._buffer.flat
        self._rows = flat.new_zeros((job.shards, len(flat))) if job.shards else None
        self._batches = Batches(
            dataset=job.dataset,
            divide=self._microbatches,
            seed=job.seed,
            loading=job.loading,
            collate=job.collate,
            seeds_alone=job.backward is None,
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

    def reduced_totals(self) -> "ReducedTotals":
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
        if self._job.backward is None or place.size > 1:
            seed_everything(key(self._job.seed, MICROBATCH, place.step, microbatch.start))
        self._buffer.begin_microbatch(send)
        batch = move_to_device(batch, self._buffer.flat.device)
        if self._job.backward is not None:
            part = self._job.backward(place, microbatch, batch, samples)
        else:
            loss = self._job.loss(self._job.model, batch)
            if loss.numel() != 1:
                raise ValueError(
                    f"loss must return the mean over the samples, not a tensor of {loss.numel()}"
                )
            (loss * weight).backward()
            part = weight * loss.detach()
        last = microbatch.start + len(microbatch.samples) == samples
        with torch.no_grad():
            self._buffer.end_microbatch(weight, part, last=last)

    def _microbatches(self, place: WorkerStep) -> list[Microbatch]:
        batch, job = self._sampler.batch_of(place.step), self._job
        if job.shards:
            own = share(job.shards, place.rank, place.size)
            return _place(0, divide(batch, job.shards))[own.start : own.stop]
        taken = share(len(batch), place.rank, place.size)
        if job.backward is not None:
            cuts = aligned_chunks(taken.start, taken.stop, job.micro_batch or job.batch)
            return [Microbatch(cut.start, batch[cut.start : cut.stop]) for cut in cuts]
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


BUCKET_BYTES = 25 << 20
"""As large as PyTorch's DistributedDataParallel makes them."""

_EXTRA = ("loss", "workers", "leaving", "nonce", "kin_high", "kin_low", "line_high", "line_low")
_LIMB = 1 << 16
"""A fingerprint is sent in two halves, whose sums over up to 256 workers a float32 holds exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedTotals:
    """The totals of a step over all its workers.

    Attributes:
        loss: Mean over the global batch.
        leaving: Those that leave after this step.
        same_settings: True if all train the same run with the same settings.
        same_state: True if all began with the same state, by their lineages.
        nonce: Random, to distinguish this commit from every other one.
    """

    loss: float
    workers: int
    leaving: int
    same_settings: bool
    same_state: bool
    nonce: int


@dataclass(frozen=True, slots=True)
class _Slice:
    """The place of a tensor in the flat vector."""

    tensor: Tensor
    start: int
    stop: int


class ReduceBuffer:
    """The flat vector of a model, with the gradients as views into it.

    Args:
        fingerprint: Of run and settings, 32 bits.
        bucket_bytes: Most bytes in one all-reduce, except for a larger parameter.

    Raises:
        ValueError: The model has no parameters to train, or lies on several devices.
    """

    def __init__(self, model: nn.Module, *, fingerprint: int, bucket_bytes: int = BUCKET_BYTES) -> None:
        # Backward reaches the last layers first: so they lie in the first bucket.
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad][::-1]
        _check(parameters)
        wide = any(parameter.dtype == torch.float64 for parameter in parameters)
        self._dtype = torch.float64 if wide else torch.float32
        self._buffers, self._fingerprint = list(model.buffers()), fingerprint
        self._slices = list(_slice([*parameters, *self._buffers]))
        self._parameters = self._slices[: len(parameters)]
        self._lineage = 0
        self._device = parameters[0].device
        self.renew()
        self._before = [buffer.clone() for buffer in self._buffers]
        self._buckets = _Buckets(self._parameters, len(self.flat), bucket_bytes // self.flat.element_size())
        for number, piece in enumerate(self._parameters):
            piece.tensor.register_post_accumulate_grad_hook(self._collector(number))

    def renew(self) -> None:
        """Take another vector: a sum that was broken off may still write to the present one."""
        end = self._slices[-1].stop
        self.flat = torch.zeros(end + len(_EXTRA), dtype=self._dtype, device=self._device)
        self._extra = dict(zip(_EXTRA, self.flat[end:], strict=True))
        self._views = [self._view(piece) for piece in self._parameters]

    def begin(self) -> None:
        """Begin a step: copy the running statistics, with which every microbatch and every retry starts."""
        for before, buffer in zip(self._before, self._buffers, strict=True):
            before.copy_(buffer)
        self.clear()

    def clear(self) -> None:
        self.flat.zero_()

    def begin_microbatch(self, send: Send | None) -> None:
        """Prepare a forward and a backward pass.

        Args:
            send: For the last microbatch, where full buckets may be sent immediately; None before.
        """
        self.restore()
        for piece, view in zip(self._parameters, self._views, strict=True):
            piece.tensor.grad = view if piece.tensor.dtype == self._dtype else None
        self._buckets.arm(send)

    def end_microbatch(self, weight: float, part: Tensor, *, last: bool) -> None:
        """Add the loss of a microbatch, and its changes of running statistics.

        Args:
            weight: Its share of the global batch.
            part: Its part of the step's loss.
            last: True if it has the batch's last sample: its counters (whole-number buffers) count.
        """
        for piece, before in zip(self._slices[len(self._parameters) :], self._before, strict=True):
            if piece.tensor.is_floating_point():
                change = (piece.tensor.to(self._dtype) - before.to(self._dtype)) * weight
            else:
                change = (piece.tensor.long() - before.long()).to(self._dtype) * last
            self.flat[piece.start : piece.stop] += change.flatten()
        self._extra["loss"] += part.reshape(())

    def finish(self, *, leaving: bool, lineage: int) -> None:
        """Add the numbers that every worker sends once."""
        self._lineage = lineage
        own = {"workers": 1, "leaving": int(leaving), "nonce": secrets.randbelow(_LIMB)}
        own |= {"kin_high": self._fingerprint // _LIMB, "kin_low": self._fingerprint % _LIMB}
        own |= {"line_high": lineage // _LIMB, "line_low": lineage % _LIMB}
        for name, value in own.items():
            self._extra[name] += value

    def send_rest(self, send: Send) -> None:
        """Send the buckets that have not been sent, in the order that all workers keep."""
        self._buckets.send_rest(self.flat, send)

    def totals(self) -> "ReducedTotals":
        """Read the totals, after the vector has been summed."""
        values = self.flat[-len(_EXTRA) :].tolist()
        loss, workers, leaving, nonce, *marks = values
        return ReducedTotals(
            loss=loss,
            workers=round(workers),
            leaving=round(leaving),
            same_settings=marks[:2] == _times(self._fingerprint, workers),
            same_state=marks[2:] == _times(self._lineage, workers),
            nonce=round(nonce),
        )

    def apply(self) -> None:
        """Put the sums into the gradients and the running statistics."""
        for piece, view in zip(self._parameters, self._views, strict=True):
            piece.tensor.grad = view if piece.tensor.dtype == self._dtype else view.to(piece.tensor.dtype)
        for piece, before in zip(self._slices[len(self._parameters) :], self._before, strict=True):
            change = self._view(piece)
            exact = before.to(self._dtype) if before.is_floating_point() else before.long()
            piece.tensor.copy_(exact + (change if before.is_floating_point() else change.round().long()))

    def restore(self) -> None:
        """Restore the running statistics of the start of the step."""
        for before, buffer in zip(self._before, self._buffers, strict=True):
            buffer.copy_(before)

    def _view(self, piece: _Slice) -> Tensor:
        return self.flat[piece.start : piece.stop].view(piece.tensor.shape)

    def _collector(self, number: int) -> Callable[[Tensor], None]:
        def collect(parameter: Tensor) -> None:
            view = self._views[number]
            if parameter.grad is not None and parameter.grad.data_ptr() != view.data_ptr():
                view += parameter.grad.to(self._dtype)
                parameter.grad = None
            self._buckets.add(number, self.flat)

        return collect


class _Buckets:
    """The ranges of the vector that are reduced together; the last one includes all that is no gradient."""

    def __init__(self, parameters: list[_Slice], length: int, limit: int) -> None:
        self._bucket_of, starts = [], [0]
        for piece in parameters:
            if piece.stop - starts[-1] > limit and piece.start > starts[-1]:
                starts.append(piece.start)
            self._bucket_of.append(len(starts) - 1)
        self._ranges = list(zip(starts, [*starts[1:], length], strict=True))
        self._missing: list[int] = []
        self._next, self._send = 0, None
        self.arm(None)

    def arm(self, send: Send | None) -> None:
        """Expect every gradient again."""
        self._missing = [self._bucket_of.count(number) for number in range(len(self._ranges))]
        self._next, self._send = 0, send

    _send: Send | None

    def add(self, number: int, flat: Tensor) -> None:
        """Count a gradient; all workers send in one order, so a full bucket may have to wait."""
        self._missing[self._bucket_of[number]] -= 1
        # The numbers after the last gradient are not there yet: the last bucket waits for send_rest.
        while self._send and self._next < len(self._ranges) - 1 and not self._missing[self._next]:
            self._send(self._range(flat, self._next))
            self._next += 1

    def send_rest(self, flat: Tensor, send: Send) -> None:
        """Send the remaining buckets; a gradient that was not computed is sent as zeros."""
        for number in range(self._next, len(self._ranges)):
            send(self._range(flat, number))
        self.arm(None)

    def _range(self, flat: Tensor, number: int) -> Tensor:
        start, stop = self._ranges[number]
        return flat[start:stop]


def _slice(tensors: list[Tensor]) -> Iterator[_Slice]:
    start = 0
    for tensor in tensors:
        yield _Slice(tensor, start, start + tensor.numel())
        start += tensor.numel()


def _times(mark: int, workers: float) -> list[float]:
    return [workers * (mark // _LIMB), workers * (mark % _LIMB)]


def _check(parameters: list[Tensor]) -> None:
    if not parameters:
        raise ValueError("the model has no parameters to train")
    devices = {str(parameter.device) for parameter in parameters}
    if len(devices) > 1:
        raise ValueError(
            f"the model lies on several devices ({', '.join(sorted(devices))}), one is supported"
        )
