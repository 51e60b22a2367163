"""A race between instance types: samples come from all in parallel; what cannot be the cheapest is ended."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from dlcloud.analysis.user_job import UserJob
from dlcloud.model.errors import DlcloudError
from dlcloud.model.untrusted import number_or_none
from dlcloud.prediction.racing import (
    MOST_SAMPLES,
    Entrant,
    RaceCandidate,
    RaceResult,
    Standing,
    Stop,
    Verdict,
    judge,
)

ASSUMED_HOURS = 100.0
"""How long the user's own work takes on the cheapest type, if it is not stated."""
LOOK_GROWTH = 1.1
"""Between two looks there are a tenth more samples: looking is allowed at any time, but costs time here."""
POLL_S = 0.2
FINISH_WAIT_S = 60.0
"""How long a round may still take; then the program is ended, whose samples are stored."""
UNNAMED = {"", "as it is"}
"""The only setting of a command without settings, and that of a type without samples."""

Arm = tuple[str, str]
"""An instance type and a setting."""

log = logging.getLogger(__name__)


def label_of(arm: Arm) -> str:
    """Return the name of an arm in a race."""
    name, setting = arm
    return name if setting in UNNAMED else f"{name} {setting}"


@dataclass(kw_only=True)
class Race:
    """The state of a race; safe to call from the threads of all types.

    Args:
        hourly_usd: Of all instances of each type that takes part.
        job: The user's own work, if it is stated.
        most_samples: Of each setting on each type; then the race ends.
    """

    hourly_usd: Mapping[str, float]
    job: UserJob | None = None
    most_samples: int = MOST_SAMPLES
    _rounds: dict[Arm, dict[int, list[float]]] = field(default_factory=dict, init=False)
    _seconds: dict[Arm, list[float]] = field(default_factory=lambda: defaultdict(list), init=False)
    _stopped: dict[str, Stop] = field(default_factory=dict, init=False)
    _left: dict[str, str] = field(default_factory=dict, init=False)
    _ended: dict[str, threading.Event] = field(init=False)
    _standing: Standing | None = field(default=None, init=False)
    _unit: str = field(default="items/s", init=False)
    _next_look: float = field(default=0.0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._ended = {name: threading.Event() for name in self.hourly_usd}

    def ended(self, name: str) -> threading.Event:
        """Return what is set once a type is to measure no more."""
        return self._ended[name]

    def take(self, name: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Take the records of one type, and end all that cannot be the cheapest any more."""
        with self._lock:
            for record in records:
                if record.get("record") == "sample":
                    self._add(name, record)
            if sum(map(len, self._rounds.values())) >= self._next_look:
                self._look()

    def leave(self, name: str, reason: str) -> None:
        """Take a type out that cannot be measured; the others race on."""
        with self._lock:
            if not self._ended[name].is_set():
                self._left[name] = reason
                self._ended[name].set()
                self._look()

    def result(self) -> RaceResult:
        """Return how the race ended, or stands."""
        with self._lock:
            return self._result()

    def _add(self, name: str, record: Mapping[str, Any]) -> None:
        value, metric = number_or_none(record.get("value")), record.get("metric")
        if value is None or value <= 0 or metric not in {"throughput", "duration"}:
            return
        is_time = metric == "duration"
        arm = (name, str(record.get("setting", "")))
        number = int(number_or_none(record.get("round")) or 0)
        rounds = self._rounds.setdefault(arm, {})
        rounds.setdefault(number, []).append(1 / value if is_time else value)
        self._seconds[arm].append(number_or_none(record.get("seconds")) or 0.0)
        self._unit = "runs/s" if is_time else str(record.get("unit", ""))

    def _look(self) -> None:
        """Judge all samples, unless the race has ended."""
        if self._standing is not None and self._standing.verdict is not Verdict.GOES_ON:
            return
        arms = self._arms()
        self._next_look = LOOK_GROWTH * sum(len(one.throughputs) for one in arms.values())
        self._standing = self._judge(arms)
        self._stopped |= self._standing.stopped
        is_over = self._standing.verdict is not Verdict.GOES_ON
        running = {arms[label].instance_type for label in self._standing.kept}
        for name in self.hourly_usd:
            if is_over or name not in running:
                self._ended[name].set()

    def _judge(self, arms: Mapping[str, RaceCandidate]) -> Standing:
        reason = self._lost(arms)
        if reason:
            return Standing(verdict=Verdict.UNDECIDED, kept=tuple(arms), stopped={}, reason=reason)
        return judge(
            [self._entrant(lane) for lane in arms.values()],
            out=self._stopped,
            job_usd=self._job_usd(arms.values()),
            most_samples=self.most_samples,
        )

    def _lost(self, arms: Mapping[str, RaceCandidate]) -> str:
        """Return why the types that left leave nothing to compare; empty if the race continues."""
        rivals = {stop.rival for label, stop in self._stopped.items() if label in arms}
        if rivals - arms.keys():
            return f"{', '.join(sorted(rivals - arms.keys()))} stopped others and left: race again"
        running = {lane.instance_type for label, lane in arms.items() if label not in self._stopped}
        if len(running) < 2 and not self._stopped:  # noqa: PLR2004  a race is of two
            return "the other types were not measured to the end: nothing is compared"
        return ""

    def _arms(self) -> dict[str, RaceCandidate]:
        """Return the lanes of the types that did not leave, by label."""
        lanes = {}
        for name, usd in self.hourly_usd.items():
            settings = [setting for other, setting in self._rounds if other == name]
            for setting in [] if name in self._left else settings or [""]:
                label = label_of((name, setting))
                lanes[label] = RaceCandidate(
                    label=label,
                    instance_type=name,
                    setting=setting,
                    hourly_usd=usd,
                    throughputs=[median(values) for values in self._rounds.get((name, setting), {}).values()],
                    stopped=self._stopped.get(label),
                )
        return lanes

    def _entrant(self, lane: RaceCandidate) -> Entrant:
        seconds = self._seconds.get((lane.instance_type, lane.setting))
        return Entrant(
            name=lane.label,
            hourly_usd=lane.hourly_usd,
            sample_s=fmean(seconds) if seconds else 0.0,
            throughputs=lane.throughputs,
        )

    def _job_usd(self, lanes: Iterable[RaceCandidate]) -> float:
        """Return what the user's own work costs on the cheapest so far."""
        costs = [(lane.hourly_usd / 3600 / lane.throughput, lane) for lane in lanes if lane.throughput]
        if not costs:
            return ASSUMED_HOURS * max(self.hourly_usd.values())
        usd, cheapest = min(costs, key=lambda pair: pair[0])
        if self.job is None or self.job.unit not in {"", self._unit.removesuffix("/s")}:
            return ASSUMED_HOURS * cheapest.hourly_usd
        return self.job.items * usd

    def _result(self) -> RaceResult:
        standing = self._standing
        return RaceResult(
            unit=self._unit,
            lanes=tuple(self._arms().values()),
            kept=standing.kept if standing else (),
            verdict=standing.verdict if standing else Verdict.GOES_ON,
            reason=standing.reason if standing else "nothing was measured",
            left=dict(self._left),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceWatch:
    """One type's part in a race, while its program runs."""

    race: Race
    instance_type: str

    @property
    def is_over(self) -> bool:
        """True if this type is to measure no more."""
        return self.race.ended(self.instance_type).is_set()

    def take(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.race.take(self.instance_type, records)

    @contextmanager
    def end_early(self, *steps: Callable[[], None]) -> Iterator[None]:
        """Carry out the steps once this type is to measure no more, until the block has ended.

        Each step has FINISH_WAIT_S to end the program.
        """
        done = threading.Event()

        def wait() -> None:
            over = self.race.ended(self.instance_type)
            while not over.wait(POLL_S):
                if done.is_set():
                    return
            for step in steps:
                if done.is_set():
                    return
                try:
                    step()
                except DlcloudError as error:
                    log.warning("%s: ending its program: %s", self.instance_type, error.message)
                done.wait(FINISH_WAIT_S)

        threading.Thread(target=wait, name=f"race of {self.instance_type}", daemon=True).start()
        try:
            yield
        finally:
            done.set()
