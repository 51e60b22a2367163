"""Turn what the arms of a case measured into results, comparisons and warnings."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import statistics
from .arm import Arm, Finish, Slice, WarmUp
from .load import Disturbance
from .records import Comparison, Measured, Metric, Result
from .statistics import Interval

if TYPE_CHECKING:
    from .protocol import Case, Session

DISTURBED_SLICE = 0.08
DISTURBED_SLICES = 0.25
"""Share of disturbed slices above which a result is not called stable."""

DIGITS = 6

SMALLEST_LEFT = 0.01

TIME_WAS_UP = "time was up"
"""How the warning begins that a speed-up is not known to the width that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A slice that counts, with what others took of it, and the round that it was measured in."""

    round: int
    slice: Slice
    disturbance: Disturbance


@dataclass(slots=True, kw_only=True)
class Track:
    """An arm and all that is known of it so far."""

    arm: Arm
    facts: dict[str, Any] = field(default_factory=dict)
    warm_up: WarmUp | None = None
    kept: list[Kept] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def values(self) -> list[float]:
        """Return the main metric of each round."""
        return [kept.slice.value for kept in self.kept]


def widths(
    case: "Case", tracks: Sequence[Track], generator: random.Random, *, resamples: int
) -> dict[str, float]:
    """Return by setting the relative width of the interval that it is judged by.

    Of a candidate that is its speed-up's; of a setting that is in no pair, as where its baseline failed, that
    of its own figure. A baseline that has candidates is in none.
    """
    pairs = _pairs(case, tracks)
    found = {
        theirs.arm.name: _speed_up(ours, theirs, generator, resamples).relative_width
        for ours, theirs in pairs
    }
    paired = {track.arm.name for pair in pairs for track in pair}
    alone = [track for track in tracks if track.arm.name not in paired]
    intervals = {
        track.arm.name: statistics.bootstrap(track.values, generator, resamples=resamples) for track in alone
    }
    return {**found, **{name: interval.relative_width for name, interval in intervals.items()}}


def _pairs(case: "Case", tracks: Sequence[Track]) -> list[tuple[Track, Track]]:
    """Return every candidate that was measured, after its baseline, where that was measured as well."""
    by_name = {track.arm.name: track for track in tracks}
    baselines = {name: by_name.get(case.baseline_of(name)) for name in by_name}
    return [
        (baseline, by_name[name])
        for name, baseline in baselines.items()
        if baseline is not None
        and baseline is not by_name[name]
        and all(_side_by_side(baseline, by_name[name]))
    ]


def _speed_up(baseline: Track, candidate: Track, generator: random.Random, resamples: int) -> Interval:
    """Return the speed-up with an interval that also holds what others' work may explain of it.

    On a busy machine one process may for many slices share its CPU with more strangers than the other: two
    equal settings then differed by a factor of two, round after round. So the interval reaches from that of
    the ratios as measured to the same per CPU time that others left each of the two on average.
    """
    ours, theirs = _side_by_side(baseline, candidate)
    higher = baseline.arm.metric.higher_is_better
    values = ([kept.slice.value for kept in each] for each in (ours, theirs))
    pairs = statistics.ratios(*values, higher_is_better=higher)
    measured = statistics.bootstrap(pairs, generator, resamples=resamples)
    explained = _left(ours) / _left(theirs)
    return replace(measured, low=measured.low * min(1.0, explained), high=measured.high * max(1.0, explained))


def _side_by_side(one: Track, other: Track) -> tuple[list[Kept], list[Kept]]:
    """Return the slices of the rounds that both settings were measured in."""
    rounds = {kept.round for kept in one.kept} & {kept.round for kept in other.kept}
    ours, theirs = ([kept for kept in each.kept if kept.round in rounds] for each in (one, other))
    return ours, theirs


def _left(slices: Sequence[Kept]) -> float:
    """Return the mean share of the CPU time of slices that others left, never quite nothing."""
    shares = [1.0 - kept.disturbance.share for kept in slices]
    return max(SMALLEST_LEFT, sum(shares) / len(shares))


def record(case: "Case", tracks: Sequence[Track], session: "Session") -> None:
    """Record the results of the settings that were measured, and how they compare with their baselines.

    Where a baseline itself failed nothing is compared with it.
    """
    if not tracks:
        return
    known = widths(case, tracks, session.generator, resamples=2000)
    for track in tracks:
        # Where not even one of its candidates could be told from it, a baseline itself is doubtful.
        widths_of = [known[name] for name in known if track.arm.name in {name, case.baseline_of(name)}]
        width = min(widths_of, default=0.0)
        warnings = [*_warnings(track), *_width_warnings(width, session.limits.width, session.limits.fixed)]
        result = Result(
            case=case.name,
            setting=track.arm.name,
            baseline=case.baseline_of(track.arm.name) == track.arm.name,
            metrics=_metrics(track, session.generator),
            facts=_facts(case, tracks, track),
            warnings=tuple(warnings),
            stable=not warnings,
        )
        session.recorder.result(result)
    for baseline, candidate in _pairs(case, tracks):
        session.recorder.comparison(_comparison(case.name, baseline, candidate, session.generator))
    _record_overall(case, tracks, session)


def _record_overall(case: "Case", tracks: Sequence[Track], session: "Session") -> None:
    """Record how every setting compares with the best of the contenders, where there is a choice of them."""
    contenders = [track for track in tracks if track.arm.name in case.contenders]
    if len(case.contenders) < 2 or not contenders:  # noqa: PLR2004 - a choice
        return
    best = max(contenders, key=_merit)
    for track in tracks:
        if track is not best and all(_side_by_side(best, track)):
            compared = _comparison(case.name, best, track, session.generator)
            session.recorder.compared_overall(compared)


def _merit(track: Track) -> float:
    middle = statistics.median(track.values)
    return middle if track.arm.metric.higher_is_better else -middle


def _comparison(case: str, baseline: Track, candidate: Track, generator: random.Random) -> Comparison:
    """Return how the settings compare, and not only the two processes that were measured for them."""
    measured = _speed_up(baseline, candidate, generator, resamples=2000)
    spread = 1.0 + max(baseline.arm.process_spread, candidate.arm.process_spread)
    speed_up = replace(measured, low=measured.low / spread, high=measured.high * spread)
    return Comparison(
        case=case,
        baseline=baseline.arm.name,
        candidate=candidate.arm.name,
        metric=baseline.arm.metric,
        ratio=_rounded(speed_up.value),
        low=_rounded(speed_up.low),
        high=_rounded(speed_up.high),
        confidence=round(speed_up.confidence, 4),
        verdict=statistics.judge(speed_up).value,
        samples=len(_side_by_side(baseline, candidate)[0]),
    )


def _facts(case: "Case", tracks: Sequence[Track], track: Track) -> Mapping[str, Any]:
    """Return an arm's facts, with those that come from comparing its outputs with its baseline's.

    A baseline's own are compared with those of the case's first setting, where that is another.
    """
    name = track.arm.name
    baseline = case.baseline_of(name)
    reference = case.arms[0].name if baseline == name else baseline
    found = next((each for each in tracks if each.arm.name == reference), None)
    if found is None or found is track or not found.finish or not track.finish:
        return track.facts
    compared = case.compare(found.finish.outputs, track.finish.outputs)
    return {**track.facts, **compared, **({"compared_with": reference} if reference != baseline else {})}


def _metrics(track: Track, generator: random.Random) -> dict[Metric, Measured]:
    main = statistics.bootstrap(track.values, generator)
    metrics = {track.arm.metric: _measured(main, track.arm.unit, len(track.values))}
    finished = track.finish.metrics if track.finish else {}
    return {**metrics, **_latency(track, generator), **_epoch(track, main), **finished}


def _epoch(track: Track, throughput: Interval) -> dict[Metric, Measured]:
    """Return the time of an epoch, computed, where the facts say how many images one has."""
    images = track.facts.get("epoch_images")
    if images is None:
        return {}
    fastest, middle, slowest = (
        _rounded(images / each) for each in (throughput.high, throughput.value, throughput.low)
    )
    duration = Measured(value=middle, low=fastest, high=slowest, unit="s", samples=len(track.values))
    return {Metric.EPOCH_DURATION: duration}


def _latency(track: Track, generator: random.Random) -> dict[Metric, Measured]:
    """Return the median and the tail of single steps, where they were timed.

    The steps of a slice resemble each other, so the interval of the median comes from the slices' medians. A
    slice is too short to have a tail: that comes from all steps together.
    """
    slices = [kept.slice.latencies_ms for kept in track.kept if kept.slice.latencies_ms]
    if not slices:
        return {}
    together = [value for latencies in slices for value in latencies]
    middle = statistics.bootstrap([statistics.median(latencies) for latencies in slices], generator)
    tail = statistics.percentile_interval(together, 0.99)
    return {
        Metric.LATENCY_P50: _measured(middle, "ms", len(together)),
        Metric.LATENCY_P99: _measured(tail, "ms", len(together)),
    }


def _measured(interval: Interval, unit: str, samples: int) -> Measured:
    value, low, high = (_rounded(value) for value in (interval.value, interval.low, interval.high))
    return Measured(value=value, low=low, high=high, unit=unit, samples=samples)


def _warnings(track: Track) -> list[str]:
    """Say what makes the figures of one setting doubtful."""
    warnings = []
    if track.warm_up is not None and not track.warm_up.settled:
        warnings.append(f"still speeding up or slowing down after {track.warm_up.seconds:.0f} s of warm-up")
    unsettled = sum(not kept.slice.settled for kept in track.kept)
    if unsettled:
        warnings.append(f"the values within {unsettled} of {len(track.kept)} runs never agreed")
    disturbed = sum(kept.disturbance.share > DISTURBED_SLICE for kept in track.kept)
    if disturbed > DISTURBED_SLICES * len(track.kept):
        warnings.append(f"other work disturbed {disturbed} of {len(track.kept)} slices")
    return warnings


def _width_warnings(width: float, wanted: float, fixed: bool) -> list[str]:  # noqa: FBT001 - a limit, passed on
    if fixed or width <= wanted:
        return []
    return [f"{TIME_WAS_UP} with the interval {100 * width:.1f} % wide, not {100 * wanted:g} %"]


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
