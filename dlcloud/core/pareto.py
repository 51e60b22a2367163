"""Which lines are worth a look: none other is both faster and cheaper."""

from collections.abc import Sequence

from dlcloud.core.instance import Market
from dlcloud.core.result_row import ResultRow


def pareto_front(lines: Sequence[ResultRow], market: Market) -> list[ResultRow]:
    """Return the lines that no other beats in throughput and cost at once, the slowest first.

    Lines without a price or a throughput are left out. Of several rehearsed types nothing can be said: all
    ran on one machine, so there is no front.
    """
    if any(line.rehearsal for line in lines) and len({line.run.instance_type for line in lines}) > 1:
        return []
    figures = [(line, figure) for line in lines if (figure := _figure(line, market)) is not None]
    front = [
        (line, mine)
        for line, mine in figures
        if not any(_beats(theirs, mine) for other, theirs in figures if other is not line)
    ]
    return [line for line, _ in sorted(front, key=lambda each: each[1])]


def _figure(line: ResultRow, market: Market) -> tuple[float, float] | None:
    usd = line.usd_per_million(market)
    return None if usd is None or line.throughput is None else (line.throughput.value, float(usd))


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] >= other[0] and one[1] <= other[1]
