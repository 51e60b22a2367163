"""Do the same to many instances at once, and tell what became of each."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from dlcloud.core.errors import DlcloudError, InstanceError, PartialError

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# After Ctrl-C: seconds that work under way is given to end before it is left behind.
_GRACE_S = 2.0
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[T, R]):
    """What became of one item: a value, or the error that prevented it."""

    item: T
    value: R | None = None
    error: Exception | None = None


def fan_out(
    work: Callable[[T], R], items: Sequence[T], *, width: int = 32, grace_s: float = _GRACE_S
) -> list[Outcome[T, R]]:
    """Call `work` for every item, on up to `width` threads, and return all outcomes in the items' order.

    An exception of one item stops no other. KeyboardInterrupt does: nothing more is begun, what is under
    way gets `grace_s` seconds to end, is then left to end with the process, and the interrupt goes on up.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    waiting: queue.SimpleQueue[tuple[int, T]] = queue.SimpleQueue()
    for numbered in enumerate(items):
        waiting.put(numbered)
    outcomes: dict[int, Outcome[T, R]] = {}
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                index, item = waiting.get_nowait()
            except queue.Empty:
                return
            outcomes[index] = _outcome(work, item)

    # Daemon threads: an executor's would keep the interpreter from ending for as long as one of them waits.
    threads = [
        threading.Thread(target=serve, name=f"dlcloud-fan-out-{number}", daemon=True)
        for number in range(min(width, len(items)))
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        stop.set()
        _leave(threads, grace_s)
        raise
    return [outcomes[index] for index in range(len(items))]


def all_or_raise(outcomes: Sequence[Outcome[T, R]], *, name: Callable[[T], str] | None = None) -> list[R]:
    """Return the values of all outcomes, in order.

    Args:
        outcomes: What `fan_out` returned.
        name: How to name an item; by default its `instance_id`, or that of its `endpoint`, or its text.

    Raises:
        InstanceError: All of them failed; of their own class, where they failed for one.
        PartialError: Some of them failed; the message names the first five with their cause.
        Exception: The first error that is none of ours, as it is: it is a bug, not a failed instance.
    """
    failed = [(outcome.item, outcome.error) for outcome in outcomes if outcome.error is not None]
    if not failed:
        return [cast("R", outcome.value) for outcome in outcomes]
    ours: list[tuple[T, DlcloudError]] = []
    for item, error in failed:
        if not isinstance(error, DlcloudError):
            raise error
        ours.append((item, error))
    if len(outcomes) == 1:
        raise ours[0][1]
    first = ours[0][1]
    kinds = {type(error) for _, error in ours}
    kind: type[DlcloudError] = type(first) if len(kinds) == 1 else InstanceError
    if len(failed) < len(outcomes):
        kind = PartialError
    raise kind(_told(ours, len(outcomes), name or _name), hint=first.hint) from first


def _outcome(work: Callable[[T], R], item: T) -> Outcome[T, R]:
    try:
        return Outcome(item=item, value=work(item))
    except Exception as e:  # noqa: BLE001 every error is kept, and raised by all_or_raise
        return Outcome(item=item, error=e)


def _leave(threads: Sequence[threading.Thread], grace_s: float) -> None:
    until = time.monotonic() + grace_s
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, until - time.monotonic()))
    if left := sum(thread.is_alive() for thread in threads):
        log.warning("interrupted; %d instances are left with what was under way there", left)


def _told(failed: Sequence[tuple[T, DlcloudError]], total: int, name: Callable[[T], str]) -> str:
    lines = [f"{len(failed)} of {total} instances failed:"]
    for item, error in failed[:_NAMED]:
        cause = error.message.partition("\n")[0]
        lines.append(f"  {cause}" if name(item) in cause else f"  {name(item)}: {cause}")
    if len(failed) > _NAMED:
        others = ", ".join(name(item) for item, _ in failed[_NAMED:])
        lines.append(f"  and {len(failed) - _NAMED} more: {others}")
    return "\n".join(lines)


def _name(item: object) -> str:
    named = getattr(item, "endpoint", item)
    return str(getattr(named, "instance_id", named))
