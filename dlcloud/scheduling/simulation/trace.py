"""How many spot instances were obtainable, over time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTrace:
    """One pool's history, as runs of equal values.

    Attributes:
        name: The pool, usually an Availability Zone.
        starts_s: When each run begins, ascending from 0.
        counts: Instances obtainable in each run.
        prices: USD an instance-hour in each run; None where the trace has no prices.
        end_s: After this the trace says nothing, and no instance is obtainable.
    """

    name: str
    starts_s: tuple[float, ...]
    counts: tuple[int, ...]
    end_s: float
    prices: tuple[float, ...] | None = None

    @property
    def availability(self) -> float:
        """The share of the time in which at least one instance is obtainable."""
        ends = (*self.starts_s[1:], self.end_s)
        spans = zip(self.starts_s, ends, self.counts, strict=True)
        return sum(end - start for start, end, count in spans if count) / self.end_s

    @property
    def losses(self) -> int:
        """How often the number of obtainable instances falls."""
        return sum(before > after for before, after in zip(self.counts, self.counts[1:], strict=False))

    def scaled(self, factor: int) -> "PoolTrace":
        """Return the trace with this many times the instances."""
        counts = tuple(count * factor for count in self.counts)
        return PoolTrace(
            name=self.name, starts_s=self.starts_s, counts=counts, end_s=self.end_s, prices=self.prices
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Traces of several pools over the same time; what one simulated job lives through."""

    name: str
    pools: tuple[PoolTrace, ...]

    @property
    def end_s(self) -> float:
        return max(pool.end_s for pool in self.pools)


def from_ticks(
    name: str, tick_s: float, counts: Sequence[int], prices: Sequence[float] | None = None
) -> PoolTrace:
    """Return the trace of values that hold for one tick each."""
    values = (
        list(zip(counts, prices, strict=True)) if prices is not None else [(count, 0.0) for count in counts]
    )
    runs = [(value, len(list(run))) for value, run in groupby(values)]
    begins = [0, *accumulate(length for _, length in runs)]
    return PoolTrace(
        name=name,
        starts_s=tuple(begin * tick_s for begin in begins[:-1]),
        counts=tuple(count for (count, _), _ in runs),
        prices=tuple(price for (_, price), _ in runs) if prices is not None else None,
        end_s=len(counts) * tick_s,
    )


def from_changes(name: str, changes: Sequence[tuple[float, int]], end_s: float) -> PoolTrace:
    """Return the trace of (time in seconds, change of the number) pairs, in any order."""
    counts: dict[float, int] = {0.0: 0}
    count = 0
    for at_s, change in sorted(changes):
        count = max(0, count + change)
        counts[at_s] = count
    merged = list(_without_repeats(sorted(counts.items())))
    return PoolTrace(
        name=name,
        starts_s=tuple(at_s for at_s, _ in merged),
        counts=tuple(value for _, value in merged),
        end_s=max(end_s, merged[-1][0]),
    )


def _without_repeats(values: Sequence[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    last: int | None = None
    for at_s, value in values:
        if value != last:
            yield at_s, value
        last = value
