"""Turn what the variants of a case measured into results, comparisons and warnings."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from . import statistics
from .case import AcceptedSlice, Case, Session, VariantResult
from .energy import facts_of
from .roofline import Work, share_of_peak
from .schema import Comparison, Measurement, MetricName, Result
from .statistics import Interval
from .variant import PeakMeter

DISTURBED_SLICE = 0.08
"""Share that other processes and other machines took of a slice, above which it is disturbed."""

DISTURBED_SLICES = 0.25
"""Share of disturbed slices above which a result is not called stable."""

DIGITS = 6
RESAMPLES = 2000
SMALLEST_SHARE_LEFT = 0.01

TIME_WAS_UP = "time was up"
"""How the warning begins that a speed-up is not known to the requested width."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A candidate and its baseline, both measured."""

    baseline: VariantResult
    candidate: VariantResult

    def slices(self) -> tuple[list[AcceptedSlice], list[AcceptedSlice]]:
        """Return the slices of the rounds in which both were measured, the baseline's first."""
        both = (self.baseline.slices, self.candidate.slices)
        rounds = set.intersection(*({accepted.round for accepted in slices} for slices in both))
        ours, theirs = ([accepted for accepted in slices if accepted.round in rounds] for slices in both)
        return ours, theirs

    def speed_up(self, seed: int) -> Interval:
        """Return the speed-up with an interval that includes what other work may explain of it.

        The same slices and seed give the same interval: the one that ended the rounds is the one reported.

        On a busy machine one process may for many slices share its CPU with more foreign processes than the
        other: two equal settings then differed by a factor of two, round after round. So the interval reaches
        from that of the measured ratios to the same per CPU time that was left to each of the two on average.
        """
        ours, theirs = self.slices()
        ratios = statistics.speed_ups(
            [accepted.value for accepted in ours],
            [accepted.value for accepted in theirs],
            higher_is_better=self.baseline.variant.metric.higher_is_better,
        )
        measured = _draw(ratios, seed)
        explained = _share_left(ours) / _share_left(theirs)
        low, high = measured.low * min(1.0, explained), measured.high * max(1.0, explained)
        return replace(measured, low=low, high=high)

    def compare(self, case: str, seed: int) -> Comparison:
        """Return how the settings compare, not only the two processes that were measured for them."""
        speed_up = self.speed_up(seed)
        spread = 1.0 + max(self.baseline.variant.process_spread, self.candidate.variant.process_spread)
        speed_up = replace(speed_up, low=speed_up.low / spread, high=speed_up.high * spread)
        return Comparison(
            case=case,
            baseline=self.baseline.name,
            candidate=self.candidate.name,
            metric=self.baseline.variant.metric,
            ratio=_round(speed_up.value),
            low=_round(speed_up.low),
            high=_round(speed_up.high),
            confidence=round(speed_up.confidence, 4),
            verdict=statistics.judge(speed_up).value,
            samples=len(self.slices()[0]),
        )


def _draw(values: Sequence[float], seed: int) -> Interval:
    generator = random.Random(seed)  # noqa: S311 - no secret
    return statistics.bootstrap(values, generator, resamples=RESAMPLES)


def _share_left(slices: Sequence[AcceptedSlice]) -> float:
    """Return the mean share of the CPU time of slices that other work left, never quite 0."""
    shares = [1.0 - accepted.disturbance.share for accepted in slices]
    return max(SMALLEST_SHARE_LEFT, sum(shares) / len(shares))


def interval_widths(case: Case, results: Sequence[VariantResult], seed: int) -> dict[str, float]:
    """Return by setting the relative width of the interval that it is judged by.

    For a candidate this is the interval of its speed-up; for a setting in no pair, because its baseline
    failed, that of its own figure. A baseline that has candidates is left out.
    """
    pairs = _pairs(case, results)
    intervals = {pair.candidate.name: pair.speed_up(seed) for pair in pairs}
    paired = {result.name for pair in pairs for result in (pair.baseline, pair.candidate)}
    for result in results:
        if result.name not in paired:
            intervals[result.name] = _draw(result.values, seed)
    return {name: interval.relative_width for name, interval in intervals.items()}


def _pairs(case: Case, results: Sequence[VariantResult]) -> list[_Pair]:
    """Return every candidate with its baseline, if both were measured in the same rounds."""
    by_name = {result.name: result for result in results}
    baselines = ((by_name.get(case.baseline_of(result.name)), result) for result in results)
    pairs = [_Pair(base, result) for base, result in baselines if base is not None and base is not result]
    return [pair for pair in pairs if all(pair.slices())]


def record_results(case: Case, results: Sequence[VariantResult], session: Session, seed: int) -> None:
    """Record the results of the measured settings and how they compare with their baselines.

    `seed` is that of the looks at the intervals.

    Nothing is compared with a baseline that failed.
    """
    if not results:
        return
    by_setting = interval_widths(case, results, seed)
    for result in results:
        # A baseline is doubtful if none of its candidates differs from it clearly.
        related = [by_setting[name] for name in by_setting if result.name in {name, case.baseline_of(name)}]
        warnings = _warnings(result)
        width, limits = min(related, default=0.0), session.limits
        if width > limits.width and not limits.fixed:
            interval = _name_interval(case, results, result)
            warnings.append(
                f"{TIME_WAS_UP} with {interval} {100 * width:.1f} % wide, not {100 * limits.width:g} %"
            )
        summary = Result(
            case=case.name,
            setting=result.name,
            baseline=case.baseline_of(result.name) == result.name,
            metrics=_metrics(result, session.generator),
            facts={
                **_facts(case, results, result),
                **_share_of_peak(result, session),
                **_energy(result),
            },
            warnings=tuple(warnings),
            stable=not warnings,
        )
        session.recorder.result(summary)
    for pair in _pairs(case, results):
        session.recorder.comparison(pair.compare(case.name, seed))
    _record_overall(case, results, session, seed)


def _name_interval(case: Case, results: Sequence[VariantResult], result: VariantResult) -> str:
    """Return which interval decides whether a result is known well enough."""
    baseline = case.baseline_of(result.name)
    others = [other for other in results if other is not result]
    if any(case.baseline_of(other.name) == result.name for other in others):
        return "the narrowest interval of a speed-up over it"
    is_paired = any(other.name == baseline for other in others)
    return "the interval of its speed-up" if is_paired else "the interval"


def _record_overall(case: Case, results: Sequence[VariantResult], session: Session, seed: int) -> None:
    """Record how every setting compares with the best of the contenders, if there are several."""
    contenders = [result for result in results if result.name in case.contenders]
    if len(case.contenders) < 2 or not contenders:  # noqa: PLR2004 - a choice
        return
    best = max(contenders, key=_merit)
    for pair in (_Pair(best, result) for result in results if result is not best):
        if all(pair.slices()):
            session.recorder.overall_comparison(pair.compare(case.name, seed))


def _merit(result: VariantResult) -> float:
    middle = median(result.values)
    return middle if result.variant.metric.higher_is_better else -middle


def _facts(case: Case, results: Sequence[VariantResult], result: VariantResult) -> Mapping[str, Any]:
    """Return a setting's facts and those from comparing its outputs with its baseline's.

    A baseline's own outputs are compared with those of the case's first setting, if that is another.
    """
    baseline = case.baseline_of(result.name)
    name = case.settings[0] if baseline == result.name else baseline
    reference = next((other for other in results if other.name == name), None)
    if reference is None or reference is result or not reference.finish or not result.finish:
        return result.facts
    compared = case.compare(reference.finish.outputs, result.finish.outputs)
    return {**result.facts, **compared, **({"compared_with": name} if name != baseline else {})}


def _energy(result: VariantResult) -> Mapping[str, Any]:
    return facts_of([part.joules for part in result.slices], sum(part.slice.items for part in result.slices))


def _share_of_peak(result: VariantResult, session: Session) -> Mapping[str, Any]:
    """Return the share of the machine's peak; nothing where the work or the peak is unknown."""
    if not isinstance(result.variant, PeakMeter) or result.variant.metric is not MetricName.THROUGHPUT:
        return {}
    work, peak = Work.of_facts(result.facts), session.peaks.best(result.variant.peak_name)
    if work is None or peak is None:
        return {}
    return share_of_peak(work, median(result.values), peak)


def _metrics(result: VariantResult, generator: random.Random) -> dict[str, Measurement]:
    main = statistics.bootstrap(result.values, generator)
    measured = _measurement(main, result.variant.unit, len(result.values))
    finished = result.finish.metrics if result.finish else {}
    return {
        result.variant.metric: measured,
        **_latency(result, generator),
        **_epoch(result, main),
        **finished,
    }


def _epoch(result: VariantResult, throughput: Interval) -> dict[str, Measurement]:
    """Return the computed time of an epoch, if the facts give its number of images."""
    images = result.facts.get("epoch_images")
    if images is None:
        return {}
    durations = (images / value for value in (throughput.high, throughput.value, throughput.low))
    fastest, middle, slowest = map(_round, durations)
    duration = Measurement(value=middle, low=fastest, high=slowest, unit="s", samples=len(result.values))
    return {MetricName.EPOCH_DURATION: duration}


def _latency(result: VariantResult, generator: random.Random) -> dict[str, Measurement]:
    """Return the median and the tail of single steps, if they were timed.

    The steps of a slice resemble each other, so the interval of the median comes from the slices' medians. A
    slice is too short to have a tail: that comes from all steps together.
    """
    slices = [accepted.slice.latencies_ms for accepted in result.slices if accepted.slice.latencies_ms]
    if not slices:
        return {}
    together = [value for latencies in slices for value in latencies]
    middle = statistics.bootstrap([median(latencies) for latencies in slices], generator)
    tail = statistics.percentile_interval(together, 0.99)
    return {
        MetricName.LATENCY_P50: _measurement(middle, "ms", len(together)),
        MetricName.LATENCY_P99: _measurement(tail, "ms", len(together)),
    }


def _measurement(interval: Interval, unit: str, samples: int) -> Measurement:
    value, low, high = map(_round, (interval.value, interval.low, interval.high))
    return Measurement(value=value, low=low, high=high, unit=unit, samples=samples)


def _warnings(result: VariantResult) -> list[str]:
    warnings = []
    if result.warm_up is not None and not result.warm_up.settled:
        warnings.append(f"still speeding up or slowing down after {result.warm_up.seconds:.0f} s of warm-up")
    unsettled = sum(not accepted.slice.settled for accepted in result.slices)
    if unsettled:
        warnings.append(f"its speed kept changing within {unsettled} of {len(result.slices)} runs")
    disturbed = sum(accepted.disturbance.share > DISTURBED_SLICE for accepted in result.slices)
    if disturbed > DISTURBED_SLICES * len(result.slices):
        warnings.append(f"other work disturbed {disturbed} of {len(result.slices)} slices")
    return warnings


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
