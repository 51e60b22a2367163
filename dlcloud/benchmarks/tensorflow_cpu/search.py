"""Search for the best setting, a knob at a time, and say what each knob earned.

Every knob in turn is a case of its own, measured by the same protocol as everything else: the best setting
so far is the baseline, the knob's other values are the candidates, each in a fresh process. A value is taken
only where its whole interval lies above 1 and its loss falls as the baseline's does; of several, the fastest.
So noise leaves a knob where it stands.

What was found is measured against stock again, in fresh processes: of many candidates the winner is partly
the luckiest, and its figures from the search flatter it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..harness import protocol
from ..harness.case import Case, Limits, Session
from ..harness.records import Comparison, Skip
from ..harness.variant import Variant
from .knobs import Knob, Setting, Value, describe, stock
from .losses import compare


@dataclass(slots=True, kw_only=True)
class Progress:
    """How many cases of the program have ended, and how many are still to come as far as is known."""

    done: int = 0
    left: int = 0

    def measure(self, case: Case, session: Session) -> None:
        """Measure one of those that were to come."""
        self.left -= 1
        protocol.measure([case], session, before=self.done, after=self.left)
        self.done += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search came to.

    Attributes:
        setting: The best.
        earned: The comparison that each knob was moved for, in order.
    """

    setting: Setting
    earned: tuple[Comparison, ...] = ()

    def told(self) -> str:
        """Say what each knob earned."""
        steps = [
            f"{each.candidate} {each.ratio:.2f}x ({each.low:.2f} to {each.high:.2f})" for each in self.earned
        ]
        return ", ".join(steps) or "no knob earned anything"


@dataclass(slots=True, kw_only=True)
class Search:
    """One search.

    Args:
        name: Of the case that is searched for, such as `vgg16 batch 8`.
        knobs: All there are, in the order of the search.
        searched: Names of those that may move.
        limits: Of each case.
        session: What the cases share.
        at_once: How many processes fit into memory, at least 2.
        variant: Makes a worker of a setting, under a name.
        progress: Counts the cases.
        most_s: Seconds after which no further knob is turned; None: every knob is.
    """

    name: str
    knobs: Sequence[Knob]
    searched: Sequence[str]
    limits: Limits
    session: Session
    at_once: int
    variant: Callable[[str, Setting], Variant]
    progress: Progress
    most_s: float | None = None
    _best: Setting = field(init=False)
    _earned: list[Comparison] = field(init=False, default_factory=list)

    def run(self) -> Found:
        """Turn each knob once."""
        self._best = stock(self.knobs)
        began = self.session.clock()
        for knob in (knob for knob in self.knobs if knob.name in self.searched):
            over = self.most_s is not None and self.session.clock() - began >= self.most_s
            # A knob without a value to try takes no time, and has reasons of its own.
            (self._leave if over and _counted(knob) else self._turn)(knob)
        found = Found(setting=self._best, earned=tuple(self._earned))
        best = f"{self.name}: best found is {describe(self._best, self.knobs)}; earned: {found.told()}"
        self.session.recorder.progress(best, done=self.progress.done, total=self._total)
        return found

    @property
    def _total(self) -> int:
        return self.progress.done + self.progress.left

    def _leave(self, knob: Knob) -> None:
        """Record that there is no time for a knob."""
        self.progress.left -= _counted(knob)
        reason = f"the {self.most_s:.0f} s for the search were up"
        skip = Skip(case=f"{self.name} search {knob.name}", setting=knob.name, reason=reason)
        self.session.recorder.skip(skip)

    def _turn(self, knob: Knob) -> None:
        """Measure a knob's other values, as many at once as there is memory for, and take the best."""
        case = f"{self.name} search {knob.name}"
        values = self._possible(case, knob)
        groups = list(_groups(values, self.at_once - 1))
        self.progress.left += len(groups) - _counted(knob)
        for number, group in enumerate(groups, 1):
            self._measure(case + (f" {number}" if len(groups) > 1 else ""), knob, group)

    def _possible(self, case: str, knob: Knob) -> list[Value]:
        """Return the values to try, and record why others are not."""
        possible = []
        for value in knob.values[1:]:
            reason = value.lacking or self._unmet(value)
            if reason:
                self.session.recorder.skip(Skip(case=case, setting=_label(knob, value), reason=reason))
            else:
                possible.append(value)
        return possible

    def _unmet(self, value: Value) -> str | None:
        unmet = [
            f"{name}={wanted}" for name, wanted in value.needs.items() if self._best[name].name != wanted
        ]
        return f"only with {', '.join(unmet)}, which was not taken" if unmet else None

    def _measure(self, case: str, knob: Knob, group: Sequence[Value]) -> None:
        """Measure a group of values beside the best so far, and take the one that is clearly better."""
        settings = {_label(knob, value): {**self._best, knob.name: value} for value in group}
        standing = {_label(knob, self._best[knob.name]): self._best}
        variants = [self.variant(name, setting) for name, setting in {**standing, **settings}.items()]
        session = replace(self.session, limits=self.limits)
        self.progress.measure(Case(name=case, variants=variants, compare=compare), session)
        better = max(self._better(case), key=lambda each: each.ratio, default=None)
        if better is not None:
            self._best = settings[better.candidate]
            self._earned.append(better)

    def _better(self, case: str) -> Iterator[Comparison]:
        """Yield the comparisons of the candidates that are worth taking."""
        recorder = self.session.recorder
        unlike = {
            result.setting
            for result in recorder.results
            if result.case == case and result.facts.get("loss_falls_likewise") is False
        }
        for each in recorder.comparisons:
            if each.case == case and each.low > 1.0 and each.candidate not in unlike:
                yield each


def cases_of(knobs: Sequence[Knob], searched: Sequence[str]) -> int:
    """Return how many cases a search has, where every knob's values fit into memory at once."""
    return sum(_counted(knob) for knob in knobs if knob.name in searched)


def _counted(knob: Knob) -> int:
    """Return 1 where this machine has a value to try, otherwise 0."""
    return int(any(value.lacking is None for value in knob.values[1:]))


def _label(knob: Knob, value: Value) -> str:
    return f"{knob.name}={value.name}"


def _groups(values: Sequence[Value], size: int) -> Iterator[Sequence[Value]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
