"""What workers report, as values: records are parsed once, where they are read (`workers.py`)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dlcloud.model.untrusted import number_or_none
from dlcloud.trainer.records import EventName


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStarted:
    """A worker's process has started; None for a setting that its record does not state.

    Attributes:
        steps: Of the whole run.
        batch: Samples in a step, over all workers.
        samples: In the data set.
    """

    steps: int | None = None
    batch: int | None = None
    samples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommitted:
    """A step is committed; None for what its record does not state.

    Attributes:
        step: Committed steps, this one included.
        instance_id: Of the worker that took it: the coordinator's file has the steps of the others, too.
        world_size: Workers that took it.
        loss: The mean over the samples of all workers.
        seconds: Since the commit before.
        generation: Of the control file that the worker followed.
    """

    step: int
    instance_id: str
    world_size: int | None = None
    loss: float | None = None
    seconds: float | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReported:
    """Something happened on an instance.

    Attributes:
        cause: For people.
        step: Committed steps of the worker's state; None where the event is not about a state.
    """

    name: EventName
    cause: str = ""
    step: int | None = None


WorkerReport = TrainingStarted | StepCommitted | EventReported


def parse_reports(instance_id: str, records: Iterable[Mapping[str, Any]]) -> list[WorkerReport]:
    """Return what the records in an instance's file report; unknown and malformed ones are left out."""
    reports = (_parse(instance_id, record) for record in records)
    return [report for report in reports if report is not None]


def _parse(instance_id: str, record: Mapping[str, Any]) -> WorkerReport | None:
    match record.get("record"):
        case "start":
            settings = record.get("settings")
            settings = settings if isinstance(settings, dict) else {}
            return TrainingStarted(
                steps=_whole_or_none(settings.get("steps")),
                batch=_whole_or_none(settings.get("batch")),
                samples=_whole_or_none(record.get("samples")),
            )
        case "step":
            return _parse_step(instance_id, record)
        case "event" if record.get("event") in [*EventName]:
            return EventReported(
                name=EventName(record["event"]),
                cause=str(record.get("cause", "")),
                step=_whole_or_none(record.get("step")),
            )
        case _:
            return None


def _parse_step(instance_id: str, record: Mapping[str, Any]) -> StepCommitted | None:
    step = _whole_or_none(record.get("step"))
    if step is None:
        return None
    return StepCommitted(
        step=step,
        # A worker is called by its instance; where an instance has several, ".1" and so on follow.
        instance_id=str(record.get("worker", instance_id)).partition(".")[0],
        world_size=_whole_or_none(record.get("world_size")),
        loss=number_or_none(record.get("loss")),
        seconds=number_or_none(record.get("seconds")),
        generation=_whole_or_none(record.get("generation")) or 0,
    )


def _whole_or_none(value: object) -> int | None:
    return value if type(value) is int else None
