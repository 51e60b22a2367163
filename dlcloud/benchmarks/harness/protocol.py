"""The protocol that every benchmark measures by: settings side by side until the ratio is known well enough.

Every setting of a case is started in its own process and warmed up until its times no longer fall. Then
come rounds: in each, every setting runs for a slice of time, in an order that rotates from round to round, so
that a machine that becomes slower slows all of them. A slice that other processes disturbed is run again. A
candidate whose speed-up over its baseline is known to the requested width sits out the following rounds. The
rounds end when no candidate is left, or when the time is up.

At the end of a case, results, comparisons and warnings are recorded: a winner is named only if the interval
of the speed-up excludes 1, and nothing is compared with a baseline that failed.

A session that is finishing begins no further round, waiting setting or case; what it measured is recorded.
Settings for which there is no memory next to the others wait until some of these are done; their baselines
stay. A setting for which there is still none is skipped.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from . import statistics, usage
from .case import AcceptedSlice, Case, Session, VariantError, VariantResult, WorkerVariant
from .records import MeasuredCase
from .roofline import Work, share_of_peak
from .schema import Comparison, Measurement, MetricName, Result
from .statistics import Interval
from .usage import disturbance, energy_facts, joules_between

REDONE_PER_SLICE = 2
REDONE_PER_CASE = 10
REDONE_UP_TO_S = 30.0
"""A longer slice is accepted and marked: running it again costs more than it is worth."""

PROGRESS_EVERY_S = 10.0

PEAK_S = 1.0
"""About how long a peak is measured, for each of its parts; no longer than a slice."""
DISTURBED_SLICE = 0.08
"""Share that other processes and other machines took of a slice, above which it is disturbed."""

DISTURBED_SLICES = 0.25
"""Share of disturbed slices above which a result is not called stable."""

DIGITS = 6
RESAMPLES = 2000
SMALLEST_SHARE_LEFT = 0.01

TIME_WAS_UP = "time was up"
"""How the warning begins that a speed-up is not known to the requested width."""


def measure(cases: Sequence[Case], session: Session, *, before: int = 0, after: int = 0) -> None:
    """Measure one case after the other; a failure is recorded and the rest continues.

    `before` and `after` count the program's cases that have ended and those still to come, for the progress.
    """
    total = before + len(cases) + after
    for done, case in enumerate(cases, before):
        if session.took_s and session.is_finishing():
            return
        earlier = session.earlier.get((case.name, case.settings))
        if earlier is not None:
            _take_over(earlier, session)
            message = f"{case.name}: measured before on {earlier.host}"
            session.recorder.progress(message, done=done + 1, total=total)
            continue
        following = cases[done - before + 1 :]
        later = after + sum((other.name, other.settings) not in session.earlier for other in following)
        expected_s = fmean(session.took_s) if session.took_s else session.limits.max_s
        session.recorder.progress(case.name, done=done, total=total, remaining_s=(later + 1) * expected_s)
        run = CaseRun(case=case, session=session, done=done, total=total, later=later)
        run.run()
        session.took_s.append(run.elapsed_s)
    if not after:
        session.recorder.progress("done", done=total, total=total, remaining_s=0.0)


def _take_over(earlier: MeasuredCase, session: Session) -> None:
    """Take over a case as it was measured; it keeps the name of the machine that it ran on."""
    recorder = session.recorder
    if session.record_earlier:
        for result in earlier.results:
            recorder.result(result)
        for comparison in earlier.comparisons:
            recorder.comparison(comparison)
        for comparison in earlier.overall:
            recorder.overall_comparison(comparison)
        recorder.case_end(
            earlier.case, earlier.settings, seconds=earlier.seconds, complete=True, host=earlier.host
        )
    else:
        recorder.results.extend(earlier.results)
        recorder.comparisons.extend(earlier.comparisons)
        recorder.overall.extend(earlier.overall)
    session.took_s.append(earlier.seconds)


@dataclass(slots=True, kw_only=True)
class CaseRun:
    """One case while it is measured; `later` more are to be measured after it."""

    case: Case
    session: Session
    done: int
    total: int
    later: int
    results: list[VariantResult] = field(default_factory=list)
    running: list[VariantResult] = field(default_factory=list)
    pending: list[VariantResult] = field(default_factory=list)
    redone: int = 0
    rounds: int = 0
    began: float = field(init=False)
    reported_at: float = field(init=False)
    seed: int = field(init=False)

    def __post_init__(self) -> None:
        self.seed = self.session.generator.getrandbits(32)
        self.began = self.reported_at = self.session.clock()

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since it began, preparations included."""
        return self.session.clock() - self.began

    def run(self) -> None:
        """Measure the case and record it; no process of it is left."""
        try:
            waiting = [VariantResult(variant=variant) for variant in self.case.variants]
            while waiting:
                waiting = self._start_all(waiting)
                self._measure_rounds()
                self._end(waiting)
                if self.session.is_finishing():
                    self._skip_all(waiting)
                    break
            self.results.sort(key=lambda result: self.case.settings.index(result.name))
            record_results(self.case, self.results, self.session, self.seed)
            complete = bool(self.results) and len(self.results) == len(self.case.variants)
            complete = complete and not self.session.is_finishing()
            self.session.recorder.case_end(
                self.case.name, self.case.settings, seconds=self.elapsed_s, complete=complete
            )
        finally:
            for variant in self.case.variants:
                variant.close()

    def _start_all(self, waiting: Sequence[VariantResult]) -> list[VariantResult]:
        """Start settings as far as there is memory, each after its baseline, and return the others.

        If there is memory for none, the first is skipped.
        """
        left: list[VariantResult] = []
        reasons: list[str] = []
        for result in waiting:
            if self.case.baseline_of(result.name) in {other.name for other in left}:
                left.append(result)
                continue
            reason = self._shortage(result)
            if reason is None:
                self.results.append(result)
                self.running.append(result)
                self._guard(result, self._start)
            else:
                left.append(result)
                reasons.append(f"{result.name}: {reason}")
        self.pending = list(self.running) if len(left) < len(waiting) else []
        if len(left) == len(waiting):
            self._skip(left.pop(0))
        elif left:
            names = ", ".join(result.name for result in left)
            self._progress(f"measured after the others: {names} ({'; '.join(reasons)})", self._expected_s())
        return left

    def _shortage(self, result: VariantResult) -> str | None:
        running = [other.variant for other in self.running]
        return usage.explain_shortage(result.variant, running, self.session.free_bytes())

    def _skip(self, result: VariantResult) -> None:
        reason = self._shortage(result) or "there was too little memory"
        others = f" next to {', '.join(other.name for other in self.running)}" if self.running else ""
        self.session.recorder.skip(self.case.name, result.name, reason + others)

    def _skip_all(self, waiting: Sequence[VariantResult]) -> None:
        for result in waiting:
            self.session.recorder.skip(self.case.name, result.name, "the measuring was ended before its turn")

    def _end(self, waiting: Collection[VariantResult]) -> None:
        """End the settings that ran, except the baselines of those that wait."""
        needed = {self.case.baseline_of(result.name) for result in waiting}
        for result in [result for result in self.running if result.name not in needed]:
            self._guard(result, self._finish)
            result.variant.close()
            if result in self.running:
                self.running.remove(result)

    def _start(self, result: VariantResult) -> None:
        self._progress(f"preparing {result.name}", self._expected_s())
        result.facts = dict(result.variant.start())
        result.warm_up = result.variant.warm_up(self.session.limits.warm_up_s)

    def _finish(self, result: VariantResult) -> None:
        result.finish = result.variant.finish()
        result.facts.update(result.finish.facts)
        if isinstance(result.variant, WorkerVariant) and not self.session.is_finishing():
            seconds = min(PEAK_S, self.session.limits.slice_s)
            with suppress(VariantError):
                result.variant.measure_peak(self.session.peaks, seconds)

    def _measure_rounds(self) -> None:
        limits, began = self.session.limits, self.session.clock()
        number = 0
        while self.pending:
            for result in _rotate(self.pending, number):
                self._report_slice(result, number)
                self._guard(result, self._measure_slice)
            self.rounds += 1
            number += 1
            elapsed_s = self.session.clock() - began
            width = self._check_widths(number)
            if self.session.is_finishing():
                return
            is_enough = limits.fixed or elapsed_s >= limits.max_s or not self.pending
            if number >= limits.rounds and is_enough:
                return
            self._report_round(number, elapsed_s, width)

    def _check_widths(self, number: int) -> float | None:
        """Leave out settings that are known well enough; return the widest interval, None between looks.

        A baseline stays as long as any of its candidates.
        """
        limits = self.session.limits
        if limits.fixed or not self.pending or not statistics.is_look_due(number, limits.rounds):
            return None
        widths = interval_widths(self.case, self.pending, self.seed)
        wide = {name for name, width in widths.items() if width > limits.width}
        needed = wide | {self.case.baseline_of(name) for name in wide}
        self.pending = [result for result in self.pending if result.name in needed]
        return max(widths.values())

    def _measure_slice(self, result: VariantResult) -> None:
        """Measure one slice, again if it was disturbed, and record the least disturbed one."""
        best = self._measure_once(result)
        redone = 0
        while redone < REDONE_PER_SLICE and self._is_worth_redoing(best):
            self.redone += 1
            redone += 1
            best = min(best, self._measure_once(result), key=lambda accepted: accepted.disturbance.share)
        result.slices.append(best)
        self._record(result, best, redone)

    def _is_worth_redoing(self, accepted: AcceptedSlice) -> bool:
        disturbed = accepted.disturbance.share > DISTURBED_SLICE
        return (
            self.session.limits.redo
            and disturbed
            and self.redone < REDONE_PER_CASE
            and accepted.slice.seconds <= REDONE_UP_TO_S
        )

    def _measure_once(self, result: VariantResult) -> AcceptedSlice:
        session = self.session
        before, own_before = session.read_cpu_times(), result.variant.cpu_s() + session.own_cpu_s()
        energy = session.read_energy()
        measured = result.variant.measure(session.limits.slice_s)
        joules = joules_between(energy, session.read_energy())
        own_after, after = result.variant.cpu_s() + session.own_cpu_s(), session.read_cpu_times()
        taken = disturbance(before, after, own_after - own_before)
        return AcceptedSlice(round=self.rounds, slice=measured, disturbance=taken, joules=joules)

    def _record(self, result: VariantResult, accepted: AcceptedSlice, redone: int) -> None:
        measured, taken = accepted.slice, accepted.disturbance
        sample = {
            "case": self.case.name,
            "setting": result.name,
            "metric": result.variant.metric,
            "unit": result.variant.unit,
            "items": measured.items,
            "seconds": round(measured.seconds, 6),
            "round": accepted.round,
            "disturbed_share": round(taken.share, 4),
            "steal_share": round(taken.stolen, 4),
            "redone": redone,
        }
        latencies = {"latencies_ms": list(measured.latencies_ms)} if measured.latencies_ms else {}
        for value in measured.parts or (measured.value,):
            self.session.recorder.sample({**sample, "value": value, **latencies})

    def _guard(self, result: VariantResult, action: Callable[[VariantResult], None]) -> None:
        """Remove a variant from the case if the action fails."""
        try:
            action(result)
        except VariantError as error:
            for results in (self.results, self.running, self.pending):
                if result in results:
                    results.remove(result)
            result.variant.close()
            self.session.recorder.failure(self.case.name, result.name, str(error))

    def _report_slice(self, result: VariantResult, number: int) -> None:
        """Report which setting runs: of the first round, and where the last report is some seconds old."""
        if number and self.session.clock() - self.reported_at < PROGRESS_EVERY_S:
            return
        of = f" of {self.session.limits.rounds}" if self.session.limits.fixed else ""
        self._progress(f"measuring {result.name}, round {number + 1}{of}", self._expected_s())

    def _report_round(self, number: int, elapsed_s: float, width: float | None) -> None:
        """Report progress at the looks, and every few seconds during long rounds: reporting costs time."""
        limits = self.session.limits
        if width is not None:
            names = ", ".join(self._candidates())
            message = f"{number} rounds, interval {100 * width:.1f} % wide; still measured: {names}"
            rest_s = self._rest_s(number, width, elapsed_s)
        elif self.session.clock() - self.reported_at >= PROGRESS_EVERY_S:
            message = f"{number} of at least {max(number, limits.rounds)} rounds"
            least_s = elapsed_s / number * max(0, limits.rounds - number)
            rest_s = least_s if limits.fixed else max(least_s, limits.max_s - elapsed_s)
        else:
            return
        case_s = fmean(took_s) if (took_s := self.session.took_s) else self.elapsed_s + rest_s
        self._progress(message, rest_s + self.later * case_s)

    def _candidates(self) -> list[str]:
        """Return the settings that are still measured, without baselines that only others of them need."""
        names = [result.name for result in self.pending]
        needed = {self.case.baseline_of(name) for name in names if self.case.baseline_of(name) != name}
        return [name for name in names if name not in needed] or names

    def _rest_s(self, number: int, width: float, elapsed_s: float) -> float:
        """Estimate how long the rounds continue: an interval narrows with the root of their number."""
        limits = self.session.limits
        if limits.fixed:
            return elapsed_s / number * max(0, limits.rounds - number)
        needed_s = elapsed_s * ((width / limits.width) ** 2 - 1)
        return max(0.0, min(needed_s, limits.max_s - elapsed_s))

    def _expected_s(self) -> float | None:
        """Estimate how long this and all later cases take, from those before; None for the first."""
        if not self.session.took_s:
            return None
        case_s = fmean(self.session.took_s)
        return max(0.0, case_s - self.elapsed_s) + self.later * case_s

    def _progress(self, message: str, remaining_s: float | None) -> None:
        self.reported_at = self.session.clock()
        self.session.recorder.progress(
            f"{self.case.name}: {message}", done=self.done, total=self.total, remaining_s=remaining_s
        )


def _rotate(results: Sequence[VariantResult], number: int) -> list[VariantResult]:
    """Return the variants in the order of a round: each is first in turn, every other round runs backwards.

    After an even number of rounds each variant was as often before any other as after it.
    """
    first = number // 2 % len(results)
    order = [*results[first:], *results[:first]]
    return order[::-1] if number % 2 else order


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
                **energy_facts(
                    [part.joules for part in result.slices], sum(part.slice.items for part in result.slices)
                ),
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


def _share_of_peak(result: VariantResult, session: Session) -> Mapping[str, Any]:
    """Return the share of the machine's peak; nothing where the work or the peak is unknown."""
    if not isinstance(result.variant, WorkerVariant) or result.variant.metric is not MetricName.THROUGHPUT:
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
