"""What an elastic run did over time, from the records of its trainers.

Reads what `dlcloud.trainer.records` documents, leniently: `step` (a committed step: step, samples, loss,
world_size, seconds, lineage) and `event` (event, cause). Every worker of a step records it; one of them is
enough. A step that was committed twice, by workers that did not know of each other or again from an older
state, has several lineages: the run went on with the one that was committed last.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A committed step; `at_s` is seconds since the run began, `seconds` since the commit before."""

    step: int
    at_s: float
    world_size: int
    samples: int
    seconds: float
    loss: float | None

    @property
    def throughput(self) -> float | None:
        """Return samples a second; None where no time passed, as at the first step of a worker."""
        return self.samples / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEvent:
    """Something that happened to a worker, an agent or a lighthouse, and why."""

    at_s: float
    event: str
    cause: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One elastic run: its steps in their order, its events as they came.

    `again` is how many commits of steps were given up, for others of the same steps took their place.
    """

    run: str
    began_at: datetime
    steps: tuple[Step, ...]
    events: tuple[TrainingEvent, ...]
    again: int = 0


def timelines_of(records: Iterable[Mapping[str, Any]]) -> list[Timeline]:
    """Return a timeline for each run that the records tell of; records that cannot be read are left out."""
    runs: dict[str, list[tuple[datetime, Mapping[str, Any]]]] = {}
    for record in records:
        time = _time(record.get("time"))
        if record.get("record") in {"step", "event"} and time is not None:
            runs.setdefault(str(record.get("run", "")), []).append((time, record))
    timelines = [_timeline(run, sorted(told, key=lambda each: each[0])) for run, told in runs.items()]
    return [each for each in timelines if each.steps]


def _timeline(run: str, told: list[tuple[datetime, Mapping[str, Any]]]) -> Timeline:
    began_at = told[0][0]
    commits: dict[int, dict[object, Step]] = {}
    last: dict[int, object] = {}
    events: list[TrainingEvent] = []
    for time, record in told:
        at_s = (time - began_at).total_seconds()
        if record["record"] == "event":
            events.append(_event(record, at_s))
        elif (step := _step(record, at_s)) is not None:
            # The first to tell of a commit: every worker does.
            commits.setdefault(step.step, {}).setdefault(record.get("lineage"), step)
            last[step.step] = record.get("lineage")
    ordered = tuple(commits[number][last[number]] for number in sorted(commits))
    again = sum(len(each) - 1 for each in commits.values())
    return Timeline(run=run, began_at=began_at, steps=ordered, events=tuple(events), again=again)


def _step(record: Mapping[str, Any], at_s: float) -> Step | None:
    try:
        loss = record.get("loss")
        return Step(
            step=int(record["step"]),
            at_s=at_s,
            world_size=int(record["world_size"]),
            samples=int(record["samples"]),
            seconds=float(record.get("seconds") or 0.0),
            loss=None if loss is None else float(loss),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _event(record: Mapping[str, Any], at_s: float) -> TrainingEvent:
    return TrainingEvent(
        at_s=at_s,
        event=str(record.get("event", "")).replace("_", " "),
        cause=str(record.get("cause", "")),
        worker=str(record.get("worker", "")),
    )


def _time(text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
