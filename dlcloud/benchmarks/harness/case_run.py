"""Measure one case: start its settings as far as memory goes, run rounds until they suffice, record it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import memory, statistics, verdicts
from .arm import Slice
from .load import Disturbance, disturbance
from .process import ArmFailedError
from .records import Failure, Skip
from .verdicts import Kept, Track

if TYPE_CHECKING:
    from .protocol import Case, Session

DISTURBED_SHARE = 0.08
"""A slice of which other processes and other machines took more than this share is run again."""

REDONE_PER_SLICE = 2
REDONE_PER_CASE = 10
REDONE_UP_TO_S = 30.0
"""A slice that took longer is kept and marked: to run it again costs more than it tells."""

TOLD_EVERY_S = 10.0

QUICK_RESAMPLES = 400
"""Enough to decide whether to go on; the figures reported are drawn from more."""


@dataclass(slots=True, kw_only=True)
class CaseRun:
    """One case while it is measured; `later` more are to be measured after it."""

    case: "Case"
    session: "Session"
    done: int
    total: int
    later: int
    tracks: list[Track] = field(default_factory=list)
    running: list[Track] = field(default_factory=list)
    pending: list[Track] = field(default_factory=list)
    redone: int = 0
    rounds: int = 0
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
            waiting = [Track(arm=arm) for arm in self.case.arms]
            while waiting:
                waiting = self._start_all(waiting)
                self._rounds()
                self._end(waiting)
            verdicts.record(self.case, self._in_order(), self.session)
            complete = bool(self.tracks) and len(self.tracks) == len(self.case.arms)
            settings = tuple(arm.name for arm in self.case.arms)
            self.session.recorder.case_end(
                self.case.name, settings, seconds=self.elapsed_s, complete=complete
            )
        finally:
            for arm in self.case.arms:
                arm.close()

    def _in_order(self) -> list[Track]:
        """Return what was measured in the order of the case's settings."""
        by_name = {track.arm.name: track for track in self.tracks}
        return [by_name[arm.name] for arm in self.case.arms if arm.name in by_name]

    def _start_all(self, waiting: Sequence[Track]) -> list[Track]:
        """Start settings as far as there is memory, each after its baseline, and return the others.

        Where there is none for any, the first is given up.
        """
        left: list[Track] = []
        reasons: list[str] = []
        for track in waiting:
            if self.case.baseline_of(track.arm.name) in {other.arm.name for other in left}:
                left.append(track)
                continue
            running = [other.arm for other in self.running]
            reason = memory.shortage(track.arm, running, self.session.free_bytes())
            if reason is None:
                self.tracks.append(track)
                self.running.append(track)
                self._guard(track, self._start)
            else:
                left.append(track)
                reasons.append(f"{track.arm.name}: {reason}")
        self.pending = list(self.running) if len(left) < len(waiting) else []
        if len(left) == len(waiting):
            self._give_up(left.pop(0))
        elif left:
            names = ", ".join(track.arm.name for track in left)
            self._progress(f"measured after the others: {names} ({'; '.join(reasons)})", self._expected_s())
        return left

    def _give_up(self, track: Track) -> None:
        """Record that there is no room for a setting."""
        running = [other.arm for other in self.running]
        reason = (
            memory.shortage(track.arm, running, self.session.free_bytes()) or "there was too little memory"
        )
        beside = f" beside {', '.join(arm.name for arm in running)}" if running else ""
        skip = Skip(case=self.case.name, setting=track.arm.name, reason=reason + beside)
        self.session.recorder.skip(skip)

    def _end(self, waiting: Collection[Track]) -> None:
        """End the settings that ran, but for the baselines of those that wait."""
        needed = {self.case.baseline_of(track.arm.name) for track in waiting}
        for track in [each for each in self.running if each.arm.name not in needed]:
            self._guard(track, self._finish)
            track.arm.close()
            if track in self.running:
                self.running.remove(track)

    def _start(self, track: Track) -> None:
        self._progress(f"preparing {track.arm.name}", self._expected_s())
        track.facts = dict(track.arm.start())
        track.warm_up = track.arm.warm_up(self.session.limits.warm_up_s)

    def _finish(self, track: Track) -> None:
        track.finish = track.arm.finish()
        track.facts.update(track.finish.facts)

    def _rounds(self) -> None:
        """Measure rounds of the settings that run until they suffice."""
        began = self.session.clock()
        number = 0
        while self.pending:
            for track in _rotated(self.pending, number):
                self._guard(track, self._slice)
            self.rounds += 1
            number += 1
            elapsed_s = self.session.clock() - began
            width = self._look(number)
            if self._enough(number, elapsed_s):
                return
            self._tell(number, elapsed_s, width)

    def _look(self, number: int) -> float | None:
        """Leave out settings that are known well enough; return the width of the worst, None between looks.

        Baselines stay for as long as any of their candidates does.
        """
        limits = self.session.limits
        if limits.fixed or not self.pending or not statistics.look_due(number, limits.rounds):
            return None
        widths = verdicts.widths(self.case, self.pending, self.session.generator, resamples=QUICK_RESAMPLES)
        wide = {name for name, width in widths.items() if width > limits.width}
        needed = wide | {self.case.baseline_of(name) for name in wide}
        self.pending = [track for track in self.pending if track.arm.name in needed]
        return max(widths.values())

    def _enough(self, number: int, elapsed_s: float) -> bool:
        limits = self.session.limits
        if number < limits.rounds:
            return False
        return limits.fixed or elapsed_s >= limits.max_s or not self.pending

    def _slice(self, track: Track) -> None:
        """Measure one slice, again where it was disturbed, and record the one that is kept."""
        best = self._measured(track)
        redone = 0
        while redone < REDONE_PER_SLICE and self._worth_redoing(best):
            self.redone += 1
            redone += 1
            best = min(best, self._measured(track), key=lambda kept: kept.disturbance.share)
        track.kept.append(best)
        self._record(track, best, redone)

    def _worth_redoing(self, kept: Kept) -> bool:
        disturbed = kept.disturbance.share > DISTURBED_SHARE
        return disturbed and self.redone < REDONE_PER_CASE and kept.slice.seconds <= REDONE_UP_TO_S

    def _measured(self, track: Track) -> Kept:
        session = self.session
        before, own_before = session.load.read(), track.arm.cpu_s() + session.own_cpu_s()
        measured = track.arm.measure(session.limits.slice_s)
        own_after, after = track.arm.cpu_s() + session.own_cpu_s(), session.load.read()
        taken = disturbance(before, after, own_after - own_before)
        return Kept(round=self.rounds, slice=measured, disturbance=taken)

    def _record(self, track: Track, kept: Kept, redone: int) -> None:
        measured = kept.slice
        shared = {
            "case": self.case.name,
            "setting": track.arm.name,
            "metric": track.arm.metric.value,
            "unit": track.arm.unit,
            "items": measured.items,
            "seconds": round(measured.seconds, 6),
            "round": kept.round,
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
            for tracks in (self.tracks, self.running, self.pending):
                if track in tracks:
                    tracks.remove(track)
            track.arm.close()
            failure = Failure(case=self.case.name, setting=track.arm.name, message=str(error))
            self.session.recorder.failure(failure)

    def _tell(self, number: int, elapsed_s: float, width: float | None) -> None:
        """Tell how far the rounds are, at the looks and where long ones let one wait: telling costs time."""
        limits = self.session.limits
        if width is not None:
            names = ", ".join(self._candidates())
            told = f"{number} rounds, interval {100 * width:.1f} % wide; still measured: {names}"
            rest_s = self._rest_s(number, width, elapsed_s)
        elif self.session.clock() - self.told_at >= TOLD_EVERY_S:
            told = f"{number} of at least {max(number, limits.rounds)} rounds"
            least_s = elapsed_s / number * max(0, limits.rounds - number)
            rest_s = least_s if limits.fixed else max(least_s, limits.max_s - elapsed_s)
        else:
            return
        each_s = _mean(took_s) if (took_s := self.session.took_s) else self.elapsed_s + rest_s
        self._progress(told, rest_s + self.later * each_s)

    def _candidates(self) -> list[str]:
        """Return the settings that are still measured, without the baselines that others of them need."""
        names = [track.arm.name for track in self.pending]
        needed = {self.case.baseline_of(name) for name in names if self.case.baseline_of(name) != name}
        return [name for name in names if name not in needed] or names

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


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
