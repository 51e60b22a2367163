"""The protocol that every benchmark measures by: settings side by side until the ratio is known well enough.

Every setting of a case is started in a process of its own and warmed up until its times no longer fall. Then
come rounds: in each, every setting runs for a slice of time, in an order that turns from round to round, so
that a machine that grows slower slows all of them. A slice that other processes disturbed is run again. The
rounds end when the speed-up of every candidate over the baseline, the first setting, is known to the width
that was asked for, or when the time is up.
"""

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import statistics, verdicts
from .arm import Arm, Slice
from .load import Disturbance, Load, disturbance
from .process import ArmFailedError
from .records import Failure, Recorder
from .resume import Earlier
from .verdicts import Kept, Track

DISTURBED_SHARE = 0.08
"""A slice of which other processes and other machines took more than this share is run again."""

REDONE_PER_SLICE = 2
REDONE_PER_CASE = 10
REDONE_UP_TO_S = 30.0
"""A slice that took longer is kept and marked: to run it again costs more than it tells."""

TOLD_EVERY_S = 10.0

QUICK_RESAMPLES = 400
"""Enough to decide whether to go on; the figures reported are drawn from more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to stop.

    Attributes:
        width: Relative width of the speed-up's interval that is good enough.
        max_s: Seconds of measuring after which no further round begins; `rounds` are measured in any case.
        rounds: Rounds before the first look at the width.
        slice_s: Least length of a slice.
        warm_up_s: Seconds after which a warm-up that has not ended is cut off.
        fixed: Stop after exactly `rounds`.
    """

    width: float = 0.05
    max_s: float = 60.0
    rounds: int = statistics.MINIMUM_PAIRS
    slice_s: float = 1.0
    warm_up_s: float = 30.0
    fixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One comparison: the same work in several settings, the baseline first.

    Attributes:
        name: Such as `vgg16 batch 1`.
        arms: The settings, not yet started.
        compare: Facts about a candidate from the baseline's outputs and its own.
        baselines: The setting that another is compared with, by names, where that is not the first; a
            setting that is its own is a baseline.
        contenders: Settings of which the best is what all the others are compared with, too.
    """

    name: str
    arms: Sequence[Arm]
    compare: Callable[[list[list[float]], list[list[float]]], Mapping[str, Any]] = lambda _ours, _theirs: {}
    baselines: Mapping[str, str] = field(default_factory=dict)
    contenders: Collection[str] = ()

    def baseline_of(self, setting: str) -> str:
        """Return the name of the setting that this one is compared with; its own where it is a baseline."""
        return self.baselines.get(setting, self.arms[0].name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What the cases of one program share.

    Attributes:
        earlier: Cases that were measured before, by name and settings; they are not measured again.
        record_earlier: Whether they are recorded again: not where the records are in the same file.
        own_cpu_s: CPU seconds of the coordinator itself.
        clock: Seconds from any start, never backwards.
        took_s: How long each case took so far; what the rest is estimated from.
    """

    limits: Limits
    recorder: Recorder
    load: Load
    generator: random.Random
    earlier: Mapping[tuple[str, tuple[str, ...]], Earlier] = field(default_factory=dict)
    record_earlier: bool = True
    own_cpu_s: Callable[[], float] = time.process_time
    clock: Callable[[], float] = time.monotonic
    took_s: list[float] = field(default_factory=list)


def measure(cases: Sequence[Case], session: Session, *, before: int = 0, after: int = 0) -> None:
    """Measure one case after the other; what fails is recorded and the rest goes on.

    Args:
        cases: What to measure.
        session: What they share.
        before: How many cases of the program have ended already; for the progress.
        after: How many are still to come, as far as is known.
    """
    total = before + len(cases) + after
    for done, case in enumerate(cases, before):
        earlier = session.earlier.get(_key(case))
        if earlier is not None:
            _take_over(earlier, session)
            message = f"{case.name}: measured before on {earlier.host}"
            session.recorder.progress(message, done=done + 1, total=total)
            continue
        later = after + sum(_key(other) not in session.earlier for other in cases[done - before + 1 :])
        expected_s = _mean(session.took_s) if session.took_s else session.limits.max_s
        session.recorder.progress(case.name, done=done, total=total, remaining_s=(later + 1) * expected_s)
        run = _CaseRun(case=case, session=session, done=done, total=total, later=later)
        run.run()
        session.took_s.append(run.elapsed_s)
    if not after:
        session.recorder.progress("done", done=total, total=total, remaining_s=0.0)


def _take_over(earlier: Earlier, session: Session) -> None:
    """Take a case as it was measured; it keeps the name of the machine that it ran on."""
    recorder = session.recorder
    if session.record_earlier:
        for result in earlier.results:
            recorder.result(result)
        for comparison in earlier.comparisons:
            recorder.comparison(comparison)
        for comparison in earlier.overall:
            recorder.compared_overall(comparison)
        recorder.case_end(
            earlier.case, earlier.settings, seconds=earlier.seconds, complete=True, host=earlier.host
        )
    else:
        recorder.results.extend(earlier.results)
        recorder.comparisons.extend(earlier.comparisons)
        recorder.overall.extend(earlier.overall)
    session.took_s.append(earlier.seconds)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _key(case: Case) -> tuple[str, tuple[str, ...]]:
    return (case.name, tuple(arm.name for arm in case.arms))


@dataclass(slots=True, kw_only=True)
class _CaseRun:
    """One case while it is measured; `later` more are to be measured after it."""

    case: Case
    session: Session
    done: int
    total: int
    later: int
    tracks: list[Track] = field(default_factory=list)
    redone: int = 0
    began: float = field(init=False)
    told_at: float = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self.began = self.told_at = self.session.clock()

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since it began, preparations included."""
        return self.session.clock() - self.began

    def run(self) -> None:
        """Measure the case and record it; no process of it is left."""
        try:
            self.tracks = [Track(arm=arm) for arm in self.case.arms]
            for track in list(self.tracks):
                self._guard(track, self._start)
            self._rounds()
            for track in list(self.tracks):
                self._guard(track, self._finish)
            verdicts.record(self.case, self.tracks, self.session)
            complete = bool(self.tracks) and len(self.tracks) == len(self.case.arms)
            self.session.recorder.case_end(*_key(self.case), seconds=self.elapsed_s, complete=complete)
        finally:
            for arm in self.case.arms:
                arm.close()

    def _start(self, track: Track) -> None:
        self._progress(f"preparing {track.arm.name}", self._expected_s())
        track.facts = dict(track.arm.start())
        track.warm_up = track.arm.warm_up(self.session.limits.warm_up_s)

    def _finish(self, track: Track) -> None:
        track.finish = track.arm.finish()
        track.facts.update(track.finish.facts)

    def _rounds(self) -> None:
        """Measure rounds until they suffice."""
        began = self.session.clock()
        number = 0
        while self.tracks:
            for track in _rotated(self.tracks, number):
                self._guard(track, lambda track, number=number: self._slice(track, number))  # type: ignore[misc]
            number += 1
            elapsed_s = self.session.clock() - began
            if self._enough(number, elapsed_s):
                return
            self._tell(number, elapsed_s)

    def _enough(self, number: int, elapsed_s: float) -> bool:
        limits = self.session.limits
        if number < limits.rounds:
            return False
        if limits.fixed or elapsed_s >= limits.max_s:
            return True
        return statistics.look_due(number, limits.rounds) and self._width() <= limits.width

    def _width(self) -> float:
        """Return the widest relative interval of the candidates, or of what is left without its baseline."""
        return verdicts.widest(self.case, self.tracks, self.session.generator, resamples=QUICK_RESAMPLES)

    def _slice(self, track: Track, number: int) -> None:
        """Measure one slice, again where it was disturbed, and record the one that is kept."""
        best = self._measured(track)
        redone = 0
        while redone < REDONE_PER_SLICE and self._worth_redoing(best):
            self.redone += 1
            redone += 1
            best = min(best, self._measured(track), key=lambda kept: kept.disturbance.share)
        track.kept.append(best)
        self._record(track, best, number, redone)

    def _worth_redoing(self, kept: Kept) -> bool:
        disturbed = kept.disturbance.share > DISTURBED_SHARE
        return disturbed and self.redone < REDONE_PER_CASE and kept.slice.seconds <= REDONE_UP_TO_S

    def _measured(self, track: Track) -> Kept:
        session = self.session
        before, own_before = session.load.read(), track.arm.cpu_s() + session.own_cpu_s()
        measured = track.arm.measure(session.limits.slice_s)
        own_after, after = track.arm.cpu_s() + session.own_cpu_s(), session.load.read()
        return Kept(slice=measured, disturbance=disturbance(before, after, own_after - own_before))

    def _record(self, track: Track, kept: Kept, number: int, redone: int) -> None:
        measured = kept.slice
        shared = {
            "case": self.case.name,
            "setting": track.arm.name,
            "metric": track.arm.metric.value,
            "unit": track.arm.unit,
            "items": measured.items,
            "seconds": round(measured.seconds, 6),
            "round": number,
            **_shares(kept.disturbance),
            "redone": redone,
        }
        for value in measured.parts or (measured.value,):
            self.session.recorder.sample({**shared, "value": value, **_latencies(measured)})

    def _guard(self, track: Track, action: Callable[[Track], None]) -> None:
        """Take an arm out of the case where it fails."""
        try:
            action(track)
        except ArmFailedError as error:
            self.tracks.remove(track)
            track.arm.close()
            failure = Failure(case=self.case.name, setting=track.arm.name, message=str(error))
            self.session.recorder.failure(failure)

    def _tell(self, number: int, elapsed_s: float) -> None:
        """Tell how far the rounds are, at the looks and where long ones let one wait: telling costs time."""
        limits = self.session.limits
        if statistics.look_due(number, limits.rounds):
            width = self._width()
            told = f"{number} rounds, interval {100 * width:.1f} % wide"
            rest_s = self._rest_s(number, width, elapsed_s)
        elif self.session.clock() - self.told_at >= TOLD_EVERY_S:
            told = f"{number} of at least {max(number, limits.rounds)} rounds"
            least_s = elapsed_s / number * max(0, limits.rounds - number)
            rest_s = least_s if limits.fixed else max(least_s, limits.max_s - elapsed_s)
        else:
            return
        each_s = _mean(took_s) if (took_s := self.session.took_s) else self.elapsed_s + rest_s
        self._progress(told, rest_s + self.later * each_s)

    def _rest_s(self, number: int, width: float, elapsed_s: float) -> float:
        """Estimate how long the rounds go on: an interval narrows with the root of their number."""
        limits = self.session.limits
        if limits.fixed:
            return elapsed_s / number * max(0, limits.rounds - number)
        needed_s = elapsed_s * ((width / limits.width) ** 2 - 1)
        return max(0.0, min(needed_s, limits.max_s - elapsed_s))

    def _expected_s(self) -> float | None:
        """Estimate how long this case and all later ones take, from those before; None for the first."""
        if not self.session.took_s:
            return None
        each_s = _mean(self.session.took_s)
        return max(0.0, each_s - self.elapsed_s) + self.later * each_s

    def _progress(self, message: str, remaining_s: float | None) -> None:
        self.told_at = self.session.clock()
        self.session.recorder.progress(
            f"{self.case.name}: {message}", done=self.done, total=self.total, remaining_s=remaining_s
        )


def _rotated(tracks: Sequence[Track], number: int) -> list[Track]:
    """Return the arms in this round's order: each is first in turn, and every other round runs backwards.

    After an even number of rounds each arm was as often before any other as after it.
    """
    first = number // 2 % len(tracks)
    order = [*tracks[first:], *tracks[:first]]
    return order[::-1] if number % 2 else order


def _shares(taken: Disturbance) -> dict[str, float]:
    return {"disturbed_share": round(taken.share, 4), "steal_share": round(taken.stolen, 4)}


def _latencies(measured: Slice) -> dict[str, list[float]]:
    return {"latencies_ms": list(measured.latencies_ms)} if measured.latencies_ms else {}
