"""The trials of an experiment: what is done, what is left, and which is best.

A recipe's parameters are numbered into trials (`number_trials`), and stored runs are matched to them by their
values, so that an interrupted experiment resumes wherever its runs were stored (`assess_trials`). A search
has no list in advance: its trials are those that it has begun (`assess_search`). `app/clusters/experiment.py`
and `runs/experiment_runner.py` ask; nothing here starts a run.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from statistics import median

from dlcloud.analysis.result import Run, RunState
from dlcloud.benchmarks.harness.numbers import read_number
from dlcloud.benchmarks.harness.schema import Result
from dlcloud.model.cluster import Member
from dlcloud.model.events import describe_values
from dlcloud.model.money import cost_of_seconds, money, total_usd

THROUGHPUT, TIME = "throughput", "time"
MOST_STEPS = 1 << 31
NOT_PRINTED = "not printed"
"""What a run states for a fact that its program did not print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One combination of values; `number` counts from 1."""

    number: int
    values: Mapping[str, str]

    @property
    def key(self) -> str:
        """The values as a text that is the same for the same values."""
        return json.dumps(dict(self.values), sort_keys=True)

    def __str__(self) -> str:
        return describe_values(self.values)


def number_trials(values: Iterable[Mapping[str, str]]) -> list[Trial]:
    """Return trials with these values, numbered from 1."""
    return [Trial(number=number, values=one) for number, one in enumerate(values, start=1)]


class TrialState(StrEnum):
    """The state of a trial. FAILED: its attempts are used up. PRUNED: its search has ended it."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    PRUNED = "pruned"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStatus:
    """A trial with its runs.

    Attributes:
        run: That of its result, else one that runs, else its newest; None if it has none.
        failures: Runs that failed; a lost instance is no failure of its trial.
        value: The metric; None if it is not measured yet, was not printed, or is no finite number.
        printed: In the last case, what was printed.
        intermediate: Steps of its run with what the metric was so far.
    """

    trial: Trial
    state: TrialState
    run: Run | None = None
    failures: int = 0
    value: float | None = None
    printed: str = ""
    intermediate: tuple[tuple[int, float], ...] = ()


def assess_trials(
    trials: Sequence[Trial], runs: Iterable[Run], values: Mapping[str, float], *, attempts: int
) -> list[TrialStatus]:
    """Return the status of each trial, in order; its runs are those with its values.

    Args:
        trials: Of a matrix or a list, all of them.
        runs: Of the experiment, the oldest first.
        values: The metric of runs that measured it, by run.
        attempts: The failures after which a trial is given up.
    """
    by_key: dict[str, list[Run]] = {}
    for run in runs:
        by_key.setdefault(run.trial_values, []).append(run)
    return [_assess(trial, by_key.get(trial.key, ()), values, attempts) for trial in trials]


def assess_search(runs: Iterable[Run], values: Mapping[str, float], *, attempts: int) -> list[TrialStatus]:
    """Return the status of each trial that a search has begun, in order; two may have the same values."""
    by_number: dict[int, list[Run]] = {}
    for run in runs:
        by_number.setdefault(run.trial, []).append(run)
    return [
        _assess(Trial(number=number, values=json.loads(of_trial[0].trial_values)), of_trial, values, attempts)
        for number, of_trial in sorted(by_number.items())
    ]


def _assess(trial: Trial, runs: Sequence[Run], values: Mapping[str, float], attempts: int) -> TrialStatus:
    failures = sum(run.state is RunState.FAILED for run in runs)
    done = next((run for run in runs if run.state is RunState.DONE), None)
    pruned = next((run for run in runs if run.state is RunState.PRUNED), None)
    running = next((run for run in runs if run.state is RunState.RUNNING), None)
    if done is not None:
        state = TrialState.DONE
    elif pruned is not None:
        state = TrialState.PRUNED
    elif running is not None:
        state = TrialState.RUNNING
    else:
        state = TrialState.FAILED if failures >= attempts else TrialState.WAITING
    run = done or pruned or running or (runs[-1] if runs else None)
    value = None if done is None else values.get(done.run_id)
    return TrialStatus(trial=trial, state=state, run=run, failures=failures, value=value)


def intermediate_of(record: Mapping[str, object]) -> tuple[int, float] | None:
    """Return the step and the value of an `intermediate` record; None for any other."""
    step, value = record.get("step"), record.get("value")
    is_one = record.get("record") == "intermediate" and isinstance(step, int) and 0 < step < MOST_STEPS
    return (int(str(step)), float(value)) if is_one and isinstance(value, int | float) else None


def metric_of(result: Result, metric: str) -> float | None:
    """Return a metric of a trial's result: items/s, seconds, or a fact that is a number.

    A fact of several runs of the trial counts by its median.
    """
    if metric in {THROUGHPUT, TIME}:
        measured = result.metrics.get("throughput" if metric == THROUGHPUT else "duration")
        return None if measured is None else measured.value
    printed = result.facts.get("printed")
    texts: list[str] = str(printed.get(metric, "")).split(", ") if isinstance(printed, dict) else []
    numbers = [number for text in texts if (number := read_number(text)) is not None]
    return median(numbers) if numbers else None


def printed_of(result: Result, metric: str) -> str:
    """Return what a trial printed for a metric if that is no number, such as `nan`; else nothing."""
    printed = result.facts.get("printed")
    text = str(printed.get(metric, "")) if isinstance(printed, dict) else ""
    return "" if text == NOT_PRINTED or metric_of(result, metric) is not None else text


def best_trial(statuses: Iterable[TrialStatus], *, maximize: bool) -> TrialStatus | None:
    """Return the trial with the best value, the first of equal ones; None without any."""
    valued = [status for status in statuses if status.value is not None]
    sign = 1 if maximize else -1
    return max(valued, key=lambda status: sign * (status.value or 0.0), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentProgress:
    """How far an experiment is.

    Attributes:
        total: All trials, those of a search that are not chosen yet included.
        failed: Trials that were given up.
        pruned: Trials that the search has ended.
        usd: What the cluster has cost so far; None if a price is unknown.
        left_s: An estimate of the time left, from the trials of this command; None before the first.
        end_usd: What the cluster will have cost by then; None where either is unknown.
    """

    total: int
    done: int
    running: int
    failed: int
    pruned: int
    usd: Decimal | None
    left_s: float | None
    best: TrialStatus | None
    end_usd: Decimal | None = None

    @property
    def left(self) -> int:
        """How many trials neither run nor have ended."""
        return max(0, self.total - self.done - self.running - self.failed - self.pruned)

    def describe(self) -> str:
        parts = [f"{self.done} of {self.total} trials done", f"{self.running} running"]
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.pruned} pruned"] if self.pruned else []
        parts.append(f"{self.left} left")
        parts += [f"{money(self.usd)} USD so far"] if self.usd is not None else []
        parts += [f"about {money(self.end_usd)} USD at the end"] if self.end_usd is not None else []
        if self.best is not None and self.best.value is not None:
            parts.append(f"best {self.best.value:.4g} ({self.best.trial})")
        return ", ".join(parts)

    def rows(self) -> tuple[tuple[str, str], ...]:
        best = self.best if self.best is not None and self.best.value is not None else None
        counts = [("done", f"{self.done} of {self.total}"), ("running", str(self.running))]
        counts += [("failed", str(self.failed)), ("left", str(self.left))]
        counts += [("pruned", str(self.pruned))] if self.pruned else []
        return (
            *counts,
            ("USD so far", "unknown" if self.usd is None else money(self.usd)),
            ("USD at the end", "unknown" if self.end_usd is None else f"about {money(self.end_usd)}"),
            ("best so far", "none" if best is None else f"{best.value:.4g} ({best.trial})"),
        )


def usd_at_end(
    members: Iterable[Member], usd: Decimal | None, left_s: float | None, *, disk_gib: int, region: str
) -> Decimal | None:
    """Return the cost of a cluster whose living instances run on for some seconds; None if it is unknown."""
    if usd is None or left_s is None:
        return None
    more = total_usd(
        None
        if member.hourly_usd is None
        else cost_of_seconds(member.hourly_usd, disk_gib, left_s, region=region)
        for member in members
        if member.ended_at is None
    )
    return None if more is None else usd + more
