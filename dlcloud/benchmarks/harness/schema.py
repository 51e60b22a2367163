"""The schema of the records that a benchmark writes: JSON, one object a line, flushed as they come.

Instances write these values (`records.Recorder`) and the launcher reads them back into the same classes
(`dlcloud.analysis.result`), so that a measurement keeps its class from the instance to the table. Commands
import this module when they start: it has enumerations and dataclasses only.

Every record has `schema` (1), `record` (its kind) and `time` (UTC, ISO 8601). A reader ignores keys and kinds
that it does not know. By kind:

start       benchmark; arguments {name: value}; seed; host: the name of the machine; environment
            {NAME: value} of the variables that steer the frameworks; hardware {cpu_model, physical_cores,
            logical_cpus, usable_cpus, affinity: the CPUs that it and all it starts may run on ("0-3"),
            cpu_flags [..], memory_gib, gpus [{name, memory_mib, driver,
            compute_capability}], governor, kernel,
            virtualization}; software {python, packages {name: version}, code: digest of the program}
progress    message; done, total: cases ended and cases in all; remaining_s: an estimate, or null
case        case; settings [..]; seconds; host: where it ran, which need not be where this program runs;
            complete: bool, true if every setting was measured, and not ended early. It follows the case's
            results; `--resume` relies on it
sample      case; setting; metric; value; unit; items; seconds; round; disturbed_share; steal_share;
            redone: times the slice was thrown away for being disturbed; latencies_ms [..] (at most 250,
            evenly taken, batch 1 only)
result      case; setting; baseline: bool; metrics {NAME: {value, low, high, unit, samples}};
            facts {NAME: value}, among them threads_running and threads_allowed_on {CPUS: threads}, as
            they were at the end; warnings [text], of the setting's own doubts alone; stable: bool
comparison  case; baseline; candidate; metric; ratio; low; high; confidence; verdict; samples.
            `ratio` is the speed-up: how many times as well the candidate does, however the metric counts
overall     a comparison with the best of several baselines, as of several engines' fp32, all measured in
            turn; keys as of `comparison`, `baseline` being the one that was best
intermediate  step; value: what the command says of its metric so far; written by dlcloud_report
failure     case; setting (null where the whole case failed); message
skip        case; setting; reason: what this machine lacks, such as memory; no failure
end         ok: bool, true where nothing failed; seconds: from start to end

`case` names the work ("vgg16 batch 1"), `setting` the way ("fp32", "int8"), `metric` is one of MetricName.
Shares are 0 to 1. `verdict` is one of Verdict. An interval [low, high] holds the true value with
95 % confidence, of fewer than six samples with 1 - 2**(1 - n); of a single one, low and high are the value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

SCHEMA = 1


class Word(str, Enum):
    """An enumeration of texts; the standard library's own is of Python 3.11."""

    __str__ = str.__str__


class MetricName(Word):
    """A measured quantity; the value is its name in the records."""

    THROUGHPUT = "throughput"
    DURATION = "duration"
    LATENCY_P50 = "latency_p50"
    LATENCY_P99 = "latency_p99"
    PEAK_MEMORY = "peak_memory"
    RESIDENT_MEMORY = "resident_memory"
    EPOCH_DURATION = "epoch_duration"  # computed from the throughput; no epoch is run

    @property
    def higher_is_better(self) -> bool:
        return self is MetricName.THROUGHPUT


class RecordKind(Word):
    """The kind of a record."""

    START = "start"
    PROGRESS = "progress"
    CASE = "case"
    SAMPLE = "sample"
    RESULT = "result"
    COMPARISON = "comparison"
    OVERALL = "overall"
    FAILURE = "failure"
    SKIP = "skip"
    END = "end"


class Verdict(Word):
    """The verdict of a comparison."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference seen"
    UNDECIDED = "undecided"  # too few pairs to decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A metric's value, a median, with its 95 % interval; the bounds are None if the record states none."""

    value: float
    low: float | None
    high: float | None
    unit: str
    samples: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The bounds; None if there are none, if they are equal, or if the lower is the higher."""
        if self.low is None or self.high is None or self.low >= self.high:
            return None
        return self.low, self.high

    @classmethod
    def exact(cls, value: float, unit: str) -> "Measurement":
        """Return a single value, rounded to 2 decimals, without an interval."""
        value = round(value, 2)
        return cls(value=value, low=value, high=value, unit=unit, samples=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one setting in one case.

    The names of metrics are those of MetricName; a launcher also keeps those that only a newer program knows.
    """

    case: str
    setting: str
    baseline: bool
    metrics: Mapping[str, Measurement]
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    stable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A candidate compared with its baseline; a `ratio` above 1 favours the candidate."""

    case: str
    baseline: str
    candidate: str
    metric: str
    ratio: float
    low: float
    high: float
    confidence: float
    verdict: str
    samples: int

    @property
    def is_decided(self) -> bool:
        """True if a difference was seen: the interval of the ratio excludes 1."""
        return self.verdict in {Verdict.FASTER, Verdict.SLOWER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A setting, or a whole case where `setting` is None, that could not be measured."""

    case: str
    setting: str | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A setting that was left out because this machine cannot run it."""

    case: str
    setting: str
    reason: str
