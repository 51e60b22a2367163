"""Run one function for many items in parallel, and keep the result or the failure of each item.

A failure is a `DlcloudError`: it belongs to its item, and the caller decides what it means for the others.
Any other exception is a bug, which `fan_out` raises itself once all calls have ended.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from dlcloud.model.errors import DlcloudError, InstanceError, PartialError

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_SIGNAL_S = 0.5
"""Python acts on Ctrl-C when the main thread wakes; a signal that reached another thread does not wake it."""

_GRACE_S = 2.0
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome(Generic[T, R]):
    """The result of one item: a value, or the failure that prevented it."""

    item: T
    value: R | None = None
    error: DlcloudError | None = None


def fan_out(
    work: Callable[[T], R],
    items: Sequence[T],
    *,
    width: int | None = 32,
    failures: type[DlcloudError] = DlcloudError,
    grace_s: float | None = _GRACE_S,
    on_interrupt: Callable[[], None] | None = None,
) -> list[CallOutcome[T, R]]:
    """Call `work` for every item, on up to `width` threads, and return all outcomes in the items' order.

    The failure of one item stops no other. Ctrl-C starts no further item and waits for the running ones.

    Args:
        work: Called once for each item.
        items: Its arguments.
        width: The most threads; None calls for all items in parallel.
        failures: The errors that are kept; every other one is a bug.
        grace_s: Seconds after Ctrl-C until items that still run are abandoned; None waits until they end.
        on_interrupt: Called on Ctrl-C, before the wait, to make running items end.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
        Exception: The first bug in the items' order, after all calls have ended.
    """
    waiting: queue.SimpleQueue[tuple[int, T]] = queue.SimpleQueue()
    for numbered in enumerate(items):
        waiting.put(numbered)
    outcomes: dict[int, CallOutcome[T, R]] = {}
    bugs: dict[int, Exception] = {}
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                index, item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                outcomes[index] = CallOutcome(item=item, value=work(item))
            except failures as error:
                outcomes[index] = CallOutcome(item=item, error=error)
            except Exception as error:  # noqa: BLE001 raised below
                bugs[index] = error

    count = len(items) if width is None else min(width, len(items))
    workers = [_Worker(serve, number) for number in range(count)]
    try:
        for worker in workers:
            worker.thread.start()
        for worker in workers:
            worker.wait()
    except BaseException:
        stop.set()
        if on_interrupt is not None:
            on_interrupt()
        _wait_for(workers, grace_s)
        raise
    if bugs:
        raise bugs[min(bugs)]
    return [outcomes[index] for index in range(len(items))]


def all_or_raise(outcomes: Sequence[CallOutcome[T, R]], *, name: Callable[[T], str] | None = None) -> list[R]:
    """Return the values of all outcomes, in order.

    Args:
        outcomes: The result of `fan_out`.
        name: Names an item in the message; by default its `instance_id`, or its endpoint's, or its text.

    Raises:
        InstanceError: All items failed; the class is that of their errors where they have one in common.
        PartialError: Some items failed; the message names the first five with their cause.
    """
    failed = [(outcome.item, outcome.error) for outcome in outcomes if outcome.error is not None]
    if not failed:
        return [cast("R", outcome.value) for outcome in outcomes]
    first = failed[0][1]
    if len(outcomes) == 1:
        raise first
    kinds = {type(error) for _, error in failed}
    kind: type[DlcloudError] = type(first) if len(kinds) == 1 else InstanceError
    if len(failed) < len(outcomes):
        kind = PartialError
    raise kind(_summary(failed, len(outcomes), name or _name), hint=first.hint) from first


class _Worker:
    """A daemon thread: those of an executor would keep the interpreter alive while one of them waits.

    Wait for `ended`, not for the thread: before Python 3.13 a thread counts as ended once Ctrl-C has
    interrupted a join of it.
    """

    def __init__(self, serve: Callable[[], None], number: int) -> None:
        self._serve = serve
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"dlcloud-fan-out-{number}", daemon=True)

    def wait(self) -> None:
        """Wait until the thread has ended, open to Ctrl-C."""
        while not self.ended.wait(_SIGNAL_S):
            pass

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self.ended.set()


def _wait_for(workers: Sequence[_Worker], grace_s: float | None) -> None:
    started = [worker for worker in workers if worker.thread.ident is not None]
    until = None if grace_s is None else time.monotonic() + grace_s
    for worker in started:
        worker.ended.wait(None if until is None else max(0.0, until - time.monotonic()))
    if running := sum(not worker.ended.is_set() for worker in started):
        log.warning("interrupted: %d operations still run and were abandoned", running)


def _summary(failed: Sequence[tuple[T, DlcloudError]], total: int, name: Callable[[T], str]) -> str:
    lines = [f"{len(failed)} of {total} instances failed:"]
    for item, error in failed[:_MOST_NAMED]:
        cause = error.message.partition("\n")[0]
        lines.append(f"  {cause}" if name(item) in cause else f"  {name(item)}: {cause}")
    if len(failed) > _MOST_NAMED:
        others = ", ".join(name(item) for item, _ in failed[_MOST_NAMED:])
        lines.append(f"  and {len(failed) - _MOST_NAMED} more: {others}")
    return "\n".join(lines)


def _name(item: object) -> str:
    target = getattr(item, "endpoint", item)
    return str(getattr(target, "instance_id", target))
