"""The timeline of an elastic run, from the records of its trainers.

Reads the records of `dlcloud.trainer.records`, leniently: `step` (a committed step: step, samples, loss,
world_size, seconds, lineage, parent) and `event` (event, cause). Every worker of a step records it; one of
them is enough. A step that was committed twice, by separate groups of workers or again from an older state,
has several lineages: the run continued with those that the latest commit descends from.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from dlcloud.model.untrusted import number_of
from dlcloud.trainer.records import event_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A committed step; `at_s` is seconds since the run began, `seconds` since the commit before.

    `workers`: those whose record of the commit is there. `reduced_bytes`:
    what each worker summed with the others; 0 where the records do not say.
    """

    step: int
    at_s: float
    world_size: int
    samples: int
    seconds: float
    loss: float | None
    reduced_bytes: int = 0
    workers: frozenset[str] = frozenset()

    @property
    def throughput(self) -> float | None:
        """Samples a second; None where no time passed, as at the first step of a worker."""
        return self.samples / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEvent:
    """An event of a worker, an agent or a lighthouse, in words, and its cause; `worker` recorded it.

    `of`: the workers that it is about, where the record names others.
    """

    at_s: float
    event: str
    cause: str
    worker: str
    of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One elastic run: its steps in order, and its events as they came.

    `replaced` are the commits that another commit of the same step replaced.
    """

    run: str
    began_at: datetime
    steps: tuple[Step, ...]
    events: tuple[TrainingEvent, ...]
    replaced: tuple[Step, ...] = ()


def build_timelines(records: Iterable[Mapping[str, Any]]) -> list[Timeline]:
    """Build the timeline of every run in the records that has steps; unreadable records are left out."""
    runs: dict[str, list[tuple[datetime, Mapping[str, Any]]]] = {}
    for record in records:
        time = _time(record.get("time"))
        if record.get("record") in {"step", "event"} and time is not None:
            runs.setdefault(str(record.get("run", "")), []).append((time, record))
    timelines = [_build(run, sorted(entries, key=lambda entry: entry[0])) for run, entries in runs.items()]
    return [timeline for timeline in timelines if timeline.steps]


def _build(run: str, entries: list[tuple[datetime, Mapping[str, Any]]]) -> Timeline:
    began_at = entries[0][0]
    commits: dict[int, dict[str, Step]] = {}
    newest = 0
    parents: dict[tuple[int, str], str] = {}
    kept: dict[int, str] = {}
    workers: dict[tuple[int, str], set[str]] = {}
    events: list[TrainingEvent] = []
    for time, record in entries:
        at_s = (time - began_at).total_seconds()
        if record["record"] == "event":
            events.append(_event(record, at_s))
        elif (step := _step(record, at_s)) is not None:
            # Every worker records a commit: the first record counts.
            lineage = str(record.get("lineage"))
            commits.setdefault(step.step, {}).setdefault(lineage, step)
            parents[step.step, lineage] = str(record.get("parent"))
            newest, kept[step.step] = step.step, lineage
            workers.setdefault((step.step, lineage), set()).add(str(record.get("worker", "")))
    # A worker that was stopped in a commit may record it after the others have taken the step again.
    for number in sorted((number for number in kept if number <= newest), reverse=True):
        parent = parents[number, kept[number]]
        if (number - 1, parent) in parents:
            kept[number - 1] = parent
    ordered = tuple(
        replace(commits[number][kept[number]], workers=frozenset(workers[number, kept[number]]))
        for number in sorted(commits)
    )
    replaced = tuple(
        step
        for number, lineages in commits.items()
        for lineage, step in lineages.items()
        if lineage != kept[number]
    )
    return Timeline(run=run, began_at=began_at, steps=ordered, events=tuple(events), replaced=replaced)


def _step(record: Mapping[str, Any], at_s: float) -> Step | None:
    try:
        loss = record.get("loss")
        return Step(
            step=int(number_of(record["step"])),
            at_s=at_s,
            world_size=int(number_of(record["world_size"])),
            samples=int(number_of(record["samples"])),
            seconds=number_of(record.get("seconds") or 0.0),
            loss=None if loss is None else number_of(loss),
            reduced_bytes=int(number_of(record.get("reduced_bytes") or 0)),
        )
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return None


def _event(record: Mapping[str, Any], at_s: float) -> TrainingEvent:
    return TrainingEvent(
        at_s=at_s,
        event=event_words(str(record.get("event", ""))),
        cause=str(record.get("cause", "")),
        worker=str(record.get("worker", "")),
        of=tuple(map(str, others)) if isinstance(others := record.get("workers"), list) else (),
    )


def _time(text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
