"""The protocol that every benchmark measures by: settings side by side until the ratio is known well enough.

Every setting of a case is started in a process of its own and warmed up until its times no longer fall. Then
come rounds: in each, every setting runs for a slice of time, in an order that turns from round to round, so
that a machine that grows slower slows all of them. A slice that other processes disturbed is run again. A
candidate whose speed-up over its baseline is known to the width that was asked for sits out the rounds that
follow: the time goes to those that are not. The rounds end when none is left, or when the time is up.

Settings for which there is no memory beside the others wait until some of these are done; their baselines
stay. A setting for which there is none even so is skipped.
"""

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import memory, statistics
from .arm import Arm
from .case_run import CaseRun
from .load import Load
from .records import Recorder
from .resume import Earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to stop.

    Attributes:
        width: Relative width of the speed-up's interval that is good enough.
        max_s: Seconds of measuring after which no further round of the settings that run side by side begins;
            `rounds` are measured in any case.
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
        free_bytes: Memory that more settings may take; None where that is not known.
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
    free_bytes: Callable[[], int | None] = memory.free_bytes
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
        run = CaseRun(case=case, session=session, done=done, total=total, later=later)
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
