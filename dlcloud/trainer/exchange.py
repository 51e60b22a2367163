"""What the workers of a step add up: gradients, changes of running statistics, the loss, proof of kinship.

All of it lies in one flat vector, so that a step needs one sum, or one per bucket where the model is large:
then a bucket travels while the gradients of the next are still computed. Gradients are summed, never
averaged: each worker has divided its losses by the global batch already.
"""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

BUCKET_BYTES = 25 << 20
"""As large as PyTorch's DistributedDataParallel makes them."""

_EXTRA = ("loss", "workers", "leaving", "nonce", "kin_high", "kin_low", "line_high", "line_low")
_LIMB = 1 << 16
"""A fingerprint travels in two halves, whose sums over up to 256 workers a float32 holds exactly."""

Send = Callable[[Tensor], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What a step came to over all its workers.

    Attributes:
        loss: Mean over the global batch.
        workers: How many took part.
        leaving: How many of them leave after this step.
        kin: Whether all of them train the same run in the same way.
        united: Whether all of them began with the same state, as their lineages say.
        nonce: A number that no other sum has, to tell this commit from every other.
    """

    loss: float
    workers: int
    leaving: int
    kin: bool
    united: bool
    nonce: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies in the flat vector."""

    tensor: Tensor
    start: int
    stop: int


class Exchange:
    """The flat vector of a model, with the gradients as views into it.

    Args:
        model: All its parameters on one device.
        fingerprint: Of run and settings, 32 bits.
        bucket_bytes: Largest size of what is summed at once, single parameters aside.

    Raises:
        ValueError: The model has nothing to train, or lies on several devices.
    """

    def __init__(self, model: nn.Module, *, fingerprint: int, bucket_bytes: int = BUCKET_BYTES) -> None:
        # Backward reaches the last layers first: so they lie in the first bucket.
        parameters = [each for each in model.parameters() if each.requires_grad][::-1]
        _check(parameters)
        wide = any(each.dtype == torch.float64 for each in parameters)
        self._dtype = torch.float64 if wide else torch.float32
        self._buffers, self._fingerprint = list(model.buffers()), fingerprint
        self._places = list(_lay_out([*parameters, *self._buffers]))
        self._parameters = self._places[: len(parameters)]
        self._lineage = 0
        end = self._places[-1].stop
        self.flat = torch.zeros(end + len(_EXTRA), dtype=self._dtype, device=parameters[0].device)
        self._extra = dict(zip(_EXTRA, self.flat[end:], strict=True))
        self._views = [self._view(place) for place in self._parameters]
        self._before = [each.clone() for each in self._buffers]
        self._buckets = _Buckets(self._parameters, len(self.flat), bucket_bytes // self.flat.element_size())
        for number, place in enumerate(self._parameters):
            place.tensor.register_post_accumulate_grad_hook(self._collector(number))

    def begin(self) -> None:
        """Begin a step: remember the running statistics, that every part starts from and a retry needs."""
        for kept, buffer in zip(self._before, self._buffers, strict=True):
            kept.copy_(buffer)
        self.clear()

    def clear(self) -> None:
        """Set all sums to nothing."""
        self.flat.zero_()

    def begin_part(self, send: Send | None) -> None:
        """Make ready for a forward and a backward pass.

        Args:
            send: Given for the last part where buckets may travel as they fill.
        """
        self.restore()
        for place, view in zip(self._parameters, self._views, strict=True):
            place.tensor.grad = view if place.tensor.dtype == self._dtype else None
        self._buckets.arm(send)

    def end_part(self, weight: float, loss: Tensor, *, last: bool) -> None:
        """Add what a part did to loss and running statistics.

        Args:
            weight: Its share of the global batch.
            loss: Mean over the part.
            last: Whether it holds the batch's last sample: its counters (whole-number buffers) are taken.
        """
        for place, before in zip(self._places[len(self._parameters) :], self._before, strict=True):
            if place.tensor.is_floating_point():
                change = (place.tensor.to(self._dtype) - before.to(self._dtype)) * weight
            else:
                change = (place.tensor.long() - before.long()).to(self._dtype) * last
            self.flat[place.start : place.stop] += change.flatten()
        self._extra["loss"] += weight * loss.reshape(())

    def finish(self, *, leaving: bool, lineage: int) -> None:
        """Add what there is one of per worker."""
        self._lineage = lineage
        own = {"workers": 1, "leaving": int(leaving), "nonce": secrets.randbelow(_LIMB)}
        own |= {"kin_high": self._fingerprint // _LIMB, "kin_low": self._fingerprint % _LIMB}
        own |= {"line_high": lineage // _LIMB, "line_low": lineage % _LIMB}
        for name, value in own.items():
            self._extra[name] += value

    def send_rest(self, send: Send) -> None:
        """Send the buckets that have not been sent, in the order that all workers keep."""
        self._buckets.send_rest(self.flat, send)

    def sums(self) -> Sums:
        """Read the extra columns, after the vector has been summed."""
        values = self.flat[-len(_EXTRA) :].tolist()
        loss, workers, leaving, nonce, *marks = values
        return Sums(
            loss=loss,
            workers=round(workers),
            leaving=round(leaving),
            kin=marks[:2] == _times(self._fingerprint, workers),
            united=marks[2:] == _times(self._lineage, workers),
            nonce=round(nonce),
        )

    def apply(self) -> None:
        """Put the summed gradients and running statistics where optimizer and model look for them."""
        for place, view in zip(self._parameters, self._views, strict=True):
            place.tensor.grad = view if place.tensor.dtype == self._dtype else view.to(place.tensor.dtype)
        for place, before in zip(self._places[len(self._parameters) :], self._before, strict=True):
            change = self._view(place)
            exact = before.to(self._dtype) if before.is_floating_point() else before.long()
            place.tensor.copy_(exact + (change if before.is_floating_point() else change.round().long()))

    def restore(self) -> None:
        """Give the running statistics the values that they had when the step began."""
        for kept, buffer in zip(self._before, self._buffers, strict=True):
            buffer.copy_(kept)

    def _view(self, place: _Place) -> Tensor:
        return self.flat[place.start : place.stop].view(place.tensor.shape)

    def _collector(self, number: int) -> Callable[[Tensor], None]:
        def collect(parameter: Tensor) -> None:
            view = self._views[number]
            if parameter.grad is not None and parameter.grad.data_ptr() != view.data_ptr():
                view += parameter.grad.to(self._dtype)
                parameter.grad = None
            self._buckets.arrived(number, self.flat)

        return collect


class _Buckets:
    """Cuts the vector into ranges that begin where a parameter begins; the last one has all that follows."""

    def __init__(self, parameters: list[_Place], length: int, limit: int) -> None:
        self._bucket_of, starts = [], [0]
        for place in parameters:
            if place.stop - starts[-1] > limit and place.start > starts[-1]:
                starts.append(place.start)
            self._bucket_of.append(len(starts) - 1)
        self._ranges = list(zip(starts, [*starts[1:], length], strict=True))
        self._missing: list[int] = []
        self._next, self._send = 0, None
        self.arm(None)

    def arm(self, send: Send | None) -> None:
        """Expect every gradient once more."""
        self._missing = [self._bucket_of.count(number) for number in range(len(self._ranges))]
        self._next, self._send = 0, send

    _send: Send | None

    def arrived(self, number: int, flat: Tensor) -> None:
        """Take note of a gradient; all workers send in one order, so a full bucket may have to wait."""
        self._missing[self._bucket_of[number]] -= 1
        # What follows the last gradient is not known yet: the last bucket waits for send_rest.
        while self._send and self._next < len(self._ranges) - 1 and not self._missing[self._next]:
            self._send(self._range(flat, self._next))
            self._next += 1

    def send_rest(self, flat: Tensor, send: Send) -> None:
        """Send what is left, gradients that never arrived as zeros."""
        for number in range(self._next, len(self._ranges)):
            send(self._range(flat, number))
        self.arm(None)

    def _range(self, flat: Tensor, number: int) -> Tensor:
        start, stop = self._ranges[number]
        return flat[start:stop]


def _lay_out(tensors: list[Tensor]) -> Iterator[_Place]:
    start = 0
    for tensor in tensors:
        yield _Place(tensor, start, start + tensor.numel())
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
