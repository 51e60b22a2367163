"""Two measurements side by side: what `dlcloud compare A B` names, the ratio, and in what else they differ.

`parse_operand` reads a side as a user names it (runs, types, settings, dates), `pairs_of` finds what was
measured on both sides, and `differences` compares their environments. Samples of one run are compared in
pairs; for two runs, the interval comes from those of both medians.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from dlcloud.analysis.cost import ResultRow
from dlcloud.analysis.result import Run
from dlcloud.benchmarks.harness.schema import Measurement, Verdict
from dlcloud.model.errors import RecipeError

KINDS = ("run", "cluster", "type", "setting", "benchmark", "case", "date")
_ALWAYS_DIFFERENT = frozenset({"record", "schema", "time", "seed"})
"""Keys of a run's description whose values differ between any two runs."""
_MACHINE = ("hardware", "software", "arguments")
FEWEST_SAMPLES = 6
"""The interval of a median of fewer samples covers less than 95 %: 1 - 2**(1 - n)."""

_OPPOSITE: dict[str, str] = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNames:
    """What is stored, by the kinds that operands name: types, settings, benchmarks and cases.

    `runs` are those words of the operands that name a stored run or cluster.
    """

    by_kind: Mapping[str, Sequence[str]]
    runs: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One side of the comparison; `words` has a word for each kind of thing that the text names."""

    text: str
    words: Mapping[str, str]

    @property
    def day(self) -> tuple[datetime, datetime] | None:
        """The beginning and the end of the day that the operand names, in UTC."""
        if "date" not in self.words:
            return None
        begin = datetime.fromisoformat(self.words["date"]).replace(tzinfo=UTC)
        return begin, begin + timedelta(days=1)

    def of(self, *kinds: str) -> Sequence[str]:
        return [self.words[kind] for kind in kinds if kind in self.words]


def words_of(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_operand(text: str, stored: StoredNames) -> Operand:
    """Return the operand that a text like `c7i.xlarge,setting:int8` states.

    Raises:
        RecipeError: It is empty, a word names nothing or several things, or two words are of one kind.
    """
    words: dict[str, str] = {}
    for part in words_of(text):
        kind, colon, word = part.partition(":")
        if not (colon and kind in KINDS):
            kind, word = _kind_of_word(part, stored)
        if kind in words:
            raise RecipeError(f"{text}: {words[kind]} and {word} are both a {kind}", "name one of a kind")
        if kind == "date" and not _is_day(word):
            raise RecipeError(f"{word!r} is not a date like 2026-09-01", "date:2026-09-01")
        words[kind] = word
    if not words:
        raise RecipeError("compare needs two operands; one is empty", "dlcloud compare --help")
    return Operand(text=text, words=words)


def free_kinds(first: Operand, second: Operand) -> frozenset[str]:
    """Return in what the sides may differ: what both fix, and the types of runs and clusters."""
    free = {kind for kind in ("type", "setting") if kind in first.words and kind in second.words}
    if {"run", "cluster"} & {*first.words, *second.words}:
        free.add("type")
    return frozenset(free)


def newest_run(rows: Sequence[ResultRow]) -> Run:
    """Return the run that describes the environment of a side."""
    return max((row.run for row in rows), key=lambda run: (run.started_at, run.run_id))


def describe_environment(run: Run, start: Mapping[str, object]) -> Mapping[str, object]:
    """Return where a run ran, by its own fields and by its start record."""
    return {
        "instance type": run.instance_type,
        "market": str(run.market),
        "region": run.region,
        "zone": run.zone,
        "image": run.image_id,
        "cloud": run.cloud,
        "started": f"{run.started_at:%Y-%m-%d %H:%M}",
        **{name: start.get(name) for name in _MACHINE},
    }


def summarize_rows(rows: Sequence[ResultRow]) -> str:
    """Return the name of the first thing that was measured, and the number of others."""
    names = dict.fromkeys(
        f"{row.run.instance_type} {row.run.workload} {row.result.case} {row.result.setting}" for row in rows
    )
    first, *others = names
    return first + (f" and {len(others)} more" if others else "")


def _kind_of_word(word: str, stored: StoredNames) -> tuple[str, str]:
    """Return the kind of thing that a word names, and its whole name: `int8` may be of `onnxruntime int8`.

    Raises:
        RecipeError: It names nothing, or several things.
    """
    names = stored.by_kind
    families = {name.partition(".")[0] for name in names["type"]}
    kinds = ["run"] if word in stored.runs else []
    kinds += [kind for kind in names if word in names[kind] or (kind == "type" and word in families)]
    if _is_day(word):
        kinds.append("date")
    if len(kinds) == 1:
        return kinds[0], word
    if kinds:
        choices = ", ".join(f"{kind}:{word}" for kind in kinds)
        raise RecipeError(f"{word} may mean several things", f"say which: {choices}")
    alike = [name for name in names["setting"] if word in name.split()]
    if len(alike) == 1:
        return "setting", alike[0]
    if alike:
        choices = ", ".join(f'"setting:{name}"' for name in alike)
        raise RecipeError(f"{word} is a part of several settings", f"say which: {choices}")
    there = "; ".join(f"{kind}s {', '.join(names[kind])}" for kind in names if names[kind])
    raise RecipeError(
        f"nothing stored is called {word}",
        f"there are {there}" if there else "nothing has been measured yet: dlcloud up quickstart",
    )


def _is_day(word: str) -> bool:
    try:
        datetime.strptime(word, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio above 1 is faster; `low` and `high` are None where no interval is known.

    `paired`: measured in turns within one run, which is surer than two runs can be.
    """

    value: float
    low: float | None
    high: float | None
    verdict: str
    paired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One thing measured on both sides."""

    first: ResultRow
    second: ResultRow
    ratio: Ratio

    @property
    def usd_ratio(self) -> Decimal | None:
        """The cost of a million items on the second side over that on the first, each on its own market.

        It is the ratio of the prices over that of the throughputs: both ratios rest on the same samples.
        """
        ours = self.first.prices.hourly_usd(self.first.run.market)
        theirs = self.second.prices.hourly_usd(self.second.run.market)
        if not ours or theirs is None or not (math.isfinite(self.ratio.value) and self.ratio.value > 0):
            return None
        return theirs / ours / Decimal(repr(self.ratio.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A property that is not the same on both sides; empty where a side lacks it."""

    name: str
    first: str
    second: str


def pairs_of(first: Iterable[ResultRow], second: Iterable[ResultRow], *, free: frozenset[str]) -> list[Pair]:
    """Return what was measured on both sides, in the order of the first.

    Args:
        first: The rows of one side, at most one of each kind.
        second: Those of the other.
        free: In what the sides are meant to differ, of `type` and `setting`; in all else they must agree.
    """
    theirs = {_kind(row, free): row for row in second}
    matched = [(row, theirs.get(_kind(row, free))) for row in first]
    return [
        Pair(first=ours, second=other, ratio=ratio_of_rows(ours, other))
        for ours, other in matched
        if other is not None and ours.throughput is not None and other.throughput is not None
        if ours is not other and ours.throughput.unit == other.throughput.unit
    ]


def are_of_one_machine(first: ResultRow, second: ResultRow) -> bool:
    """Return whether rows are of two types that were both rehearsed."""
    both = first.rehearsal and second.rehearsal
    return both and first.run.instance_type != second.run.instance_type


def ratio_of_rows(first: ResultRow, second: ResultRow) -> Ratio:
    """Return the ratio of two rows: that of their run's paired comparison, else that of their medians."""
    paired = _paired(first, second)
    if paired is not None:
        return paired
    if first.throughput is None or second.throughput is None:
        raise ValueError("both rows must have a throughput")
    ratio = ratio_of(first.throughput, second.throughput)
    if are_of_one_machine(first, second):  # whatever differs, it is not the types
        return Ratio(value=ratio.value, low=ratio.low, high=ratio.high, verdict=Verdict.UNDECIDED)
    return ratio


def ratio_of(first: Measurement, second: Measurement) -> Ratio:
    """Return second over first with its 95 % interval, from the intervals of two independent medians.

    The variances are recovered from the distances of the bounds, on the logarithmic scale, so that the ratio
    and its inverse have inverse intervals and uneven bounds stay uneven.

    Source: Zou and Donner 2008, "Construction of confidence limits about effect measures", section 2 (MOVER).
    """
    value = second.value / first.value if first.value else math.inf
    bounds = (first.low, first.high, second.low, second.high)
    if not all(bound is not None and bound > 0 for bound in (first.value, second.value, *bounds)):
        return Ratio(value=value, low=None, high=None, verdict=Verdict.UNDECIDED)
    ours, theirs = _distances(first), _distances(second)
    low = value * math.exp(-math.hypot(theirs[0], ours[1]))
    high = value * math.exp(math.hypot(theirs[1], ours[0]))
    enough = min(first.samples, second.samples) >= FEWEST_SAMPLES
    verdict = verdict_of(low, high) if enough else Verdict.UNDECIDED
    return Ratio(value=value, low=low, high=high, verdict=verdict)


def scale_ratio(ratio: Ratio, factor: float) -> Ratio:
    """Return a ratio times a certain factor, with the verdict of its interval; one undecided stays so."""
    if ratio.low is None or ratio.high is None:
        return replace(ratio, value=ratio.value * factor)
    low, high = ratio.low * factor, ratio.high * factor
    verdict = ratio.verdict if ratio.verdict == Verdict.UNDECIDED else verdict_of(low, high)
    return replace(ratio, value=ratio.value * factor, low=low, high=high, verdict=verdict)


def verdict_of(low: float, high: float) -> str:
    """Return the verdict of an interval: a winner only if it excludes 1."""
    return Verdict.FASTER if low > 1 else Verdict.SLOWER if high < 1 else Verdict.NO_DIFFERENCE


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], *, ignored: frozenset[str] = frozenset()
) -> list[Difference]:
    """Return in what two nested mappings differ, by dotted names; lists by what only one side has."""
    ours, theirs = _flat(first), _flat(second)
    return [
        _difference(name, ours.get(name), theirs.get(name))
        for name in {**ours, **theirs}
        if name not in ignored and ours.get(name) != theirs.get(name)
    ]


def ignored_differences(pairs: Sequence[Pair]) -> frozenset[str]:
    """Return the keys of descriptions that say nothing of these pairs."""
    same_run = all(pair.first.run.run_id == pair.second.run.run_id for pair in pairs)
    return _ALWAYS_DIFFERENT | ({"started"} if same_run else set())


def _distances(metric: Measurement) -> tuple[float, float]:
    """Return how far the bounds are from the value, below and above, as logarithms; never negative."""
    low, high = metric.low or metric.value, metric.high or metric.value
    return max(0.0, math.log(metric.value / low)), max(0.0, math.log(high / metric.value))


def _paired(first: ResultRow, second: ResultRow) -> Ratio | None:
    if first.run.run_id != second.run.run_id or first.result.case != second.result.case:
        return None
    forward, backward = second.comparison, first.comparison
    if forward is not None and forward.baseline == first.result.setting:
        return Ratio(
            value=forward.ratio, low=forward.low, high=forward.high, verdict=forward.verdict, paired=True
        )
    if backward is not None and backward.baseline == second.result.setting and backward.low > 0:
        return Ratio(
            value=1 / backward.ratio,
            low=1 / backward.high,
            high=1 / backward.low,
            verdict=_OPPOSITE.get(backward.verdict, backward.verdict),
            paired=True,
        )
    return None


def _kind(row: ResultRow, free: frozenset[str]) -> tuple[str, ...]:
    properties = {
        "benchmark": row.run.workload,
        "case": row.result.case,
        "type": row.run.instance_type,
        "setting": row.result.setting,
    }
    return tuple(value for name, value in properties.items() if name not in free)


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def _difference(name: str, first: Any, second: Any) -> Difference:  # noqa: ANN401  any JSON value
    if isinstance(first, list) and isinstance(second, list):
        return Difference(name=name, first=_only_in(first, second), second=_only_in(second, first))
    return Difference(name=name, first=_text(first), second=_text(second))


def _only_in(values: Sequence[object], others: Sequence[object]) -> str:
    only = [str(value) for value in values if value not in others]
    return f"only here: {', '.join(only)}" if only else ""


def _text(value: object) -> str:
    return "" if value is None else str(value)
