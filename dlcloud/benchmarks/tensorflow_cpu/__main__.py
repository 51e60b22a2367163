"""Compare settings of training with TensorFlow: `python3 -m benchmarks.tensorflow_cpu`.

The settings are TensorFlow's own, those of an article of 2018, and the best that a search finds. In the
search every knob in turn is a case, measured by the same protocol as everything else: the best configuration
so far is the baseline, the knob's other values are the candidates, each in a fresh process. A value is taken
only if its whole interval lies above 1 and its loss falls as the baseline's does; of several, the fastest. So
noise leaves a knob as it is.

The best configuration is measured against stock again, in fresh processes: of many candidates the winner is
partly the luckiest, and its figures from the search flatter it.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..harness import program, protocol
from ..harness.case import Case, Limits, Session, Variant, VariantError, WorkerVariant
from ..harness.schema import Comparison
from .settings import (
    ARTICLE,
    ENTRY,
    SEARCH,
    SIZES,
    STOCK,
    TODAY,
    Configuration,
    Knob,
    KnobValue,
    TrainingMachine,
    arguments_of,
    article_configuration,
    article_facts,
    describe,
    dtype_of,
    environment_of,
    inspect_machine,
    knobs_of,
    parse,
    stock_configuration,
)

LOSS_TOLERANCE = 0.1
"""How far apart two losses may lie, as a share of the first one.

Sums in another order, in fp32, already move the loss of a small batch by a few percent within ten steps.
"""

FEWEST_LOSSES = 3


def compare_losses(reference: list[list[float]], other: list[list[float]]) -> dict[str, Any]:
    """Return facts about the losses of the first steps, one row of each setting.

    `loss_falls_likewise` is None if there were too few steps, or if the baseline's own loss does not
    fall.
    """
    steps = min(len(reference[0]), len(other[0]))
    ours, theirs = reference[0][:steps], other[0][:steps]
    ends = {
        "loss_first": theirs[0],
        "loss_last": theirs[-1],
        "baseline_loss_first": ours[0],
        "baseline_loss_last": ours[-1],
    }
    # JSON holds no infinity and no NaN.
    finite = {name: round(loss, 6) if math.isfinite(loss) else None for name, loss in ends.items()}
    return {"loss_steps": steps, **finite, "loss_falls_likewise": _falls_likewise(ours, theirs)}


def _falls_likewise(ours: list[float], theirs: list[float]) -> bool | None:
    if not all(map(math.isfinite, theirs)):
        return False
    if len(ours) < FEWEST_LOSSES or not ours[-1] < ours[0]:
        return None
    near = abs(theirs[-1] - ours[-1]) <= LOSS_TOLERANCE * abs(ours[0])
    return near and theirs[-1] < theirs[0]


@dataclass(slots=True, kw_only=True)
class Progress:
    """How many cases of the program have ended, and how many are still to come as far as is known."""

    done: int = 0
    left: int = 0

    @property
    def total(self) -> int:
        return self.done + self.left

    def measure(self, case: Case, session: Session) -> None:
        self.left -= 1
        protocol.measure([case], session, before=self.done, after=self.left)
        self.done += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best configuration, and the comparison that each knob was turned for, in order."""

    configuration: Configuration
    earned: tuple[Comparison, ...] = ()

    def summary(self) -> str:
        gains = [
            f"{gain.candidate} {gain.ratio:.2f}x ({gain.low:.2f} to {gain.high:.2f})" for gain in self.earned
        ]
        return ", ".join(gains) or "no knob earned anything"


@dataclass(slots=True, kw_only=True)
class Search:
    """One search."""

    name: str  # name of the case that is searched for, such as `vgg16 batch 8`
    knobs: Sequence[Knob]  # all knobs in the order of the search
    searched: Sequence[str]  # names of those that may be turned
    limits: Limits
    session: Session
    at_once: int  # how many processes fit into memory, at least 2
    make_variant: Callable[[str, Configuration], Variant]  # makes a worker of a configuration, under a name
    progress: Progress
    most_s: float | None = None  # seconds after which no further knob is turned; None turns every knob
    _best: Configuration = field(init=False)
    _earned: list[Comparison] = field(init=False, default_factory=list)

    def run(self) -> SearchResult:
        self._best = stock_configuration(self.knobs)
        began = self.session.clock()
        for knob in (knob for knob in self.knobs if knob.name in self.searched):
            over = self.most_s is not None and self.session.clock() - began >= self.most_s
            # A knob without a value to try takes no time, and has its own reasons.
            (self._skip if over and _has_candidates(knob) else self._turn)(knob)
        result = SearchResult(configuration=self._best, earned=tuple(self._earned))
        best = f"{self.name}: best found is {describe(self._best, self.knobs)}; earned: {result.summary()}"
        self.session.recorder.progress(best, done=self.progress.done, total=self.progress.total)
        return result

    def _skip(self, knob: Knob) -> None:
        self.progress.left -= 1
        reason = f"the {self.most_s:.0f} s for the search were up"
        self.session.recorder.skip(self._case(knob), knob.name, reason)

    def _case(self, knob: Knob) -> str:
        return f"{self.name} search {knob.name}"

    def _turn(self, knob: Knob) -> None:
        """Measure a knob's other values, as many in parallel as there is memory for, and take the best."""
        values = self._runnable_values(knob)
        size = self.at_once - 1
        groups = [values[start : start + size] for start in range(0, len(values), size)]
        self.progress.left += len(groups) - _has_candidates(knob)
        for number, group in enumerate(groups, 1):
            self._measure(self._case(knob) + (f" {number}" if len(groups) > 1 else ""), knob, group)

    def _runnable_values(self, knob: Knob) -> list[KnobValue]:
        """Return the values to try, and record why others are not."""
        runnable = []
        for value in knob.values[1:]:
            reason = value.unsupported or self._explain_unmet(value)
            if reason:
                self.session.recorder.skip(self._case(knob), _label(knob, value), reason)
            else:
                runnable.append(value)
        return runnable

    def _explain_unmet(self, value: KnobValue) -> str | None:
        unmet = [
            f"{name}={other}" for name, other in value.requires.items() if self._best[name].name != other
        ]
        return f"only with {', '.join(unmet)}, which was not taken" if unmet else None

    def _measure(self, case: str, knob: Knob, group: Sequence[KnobValue]) -> None:
        """Measure a group of values in turn with the best so far, and take the one that is clearly better."""
        candidates = {_label(knob, value): {**self._best, knob.name: value} for value in group}
        baseline = {_label(knob, self._best[knob.name]): self._best}
        variants = [self.make_variant(name, values) for name, values in {**baseline, **candidates}.items()]
        session = replace(self.session, limits=self.limits)
        self.progress.measure(Case(name=case, variants=variants, compare=compare_losses), session)
        gain = max(self._gains(case), key=lambda comparison: comparison.ratio, default=None)
        if gain is not None:
            self._best = candidates[gain.candidate]
            self._earned.append(gain)

    def _gains(self, case: str) -> Iterator[Comparison]:
        """Yield the comparisons of the candidates that are worth taking."""
        recorder = self.session.recorder
        diverging = {
            result.setting
            for result in recorder.results
            if result.case == case and result.facts.get("loss_falls_likewise") is False
        }
        for comparison in recorder.comparisons:
            if comparison.case == case and comparison.low > 1.0 and comparison.candidate not in diverging:
                yield comparison


def count_cases(knobs: Sequence[Knob], searched: Sequence[str]) -> int:
    """Return how many cases a search has, if every knob's values fit into memory together."""
    return sum(_has_candidates(knob) for knob in knobs if knob.name in searched)


def _has_candidates(knob: Knob) -> bool:
    return any(value.unsupported is None for value in knob.values[1:])


def _label(knob: Knob, value: KnobValue) -> str:
    return f"{knob.name}={value.name}"


QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}

LOGGED = {"ONEDNN_VERBOSE": "1"}
"""Makes oneDNN print every primitive that it runs; proof.py reads it."""

TRAINING, PROOF = "tensorflow_cpu.training:train", "tensorflow_cpu.training:prove"

LEAST_AT_ONCE = 2


@dataclass(slots=True, kw_only=True)
class Experiments:
    """Everything that one call of the program measures."""

    arguments: argparse.Namespace
    machine: TrainingMachine
    knobs: Sequence[Knob]
    search_limits: Limits  # limits of each case of a search; those of the others are the session's
    session: Session
    progress: Progress = field(default_factory=Progress)

    def run(self) -> None:
        if self.arguments.device == "gpu" and self.machine.gpu is None:
            self.session.recorder.skip("tensorflow", "gpu", "this machine has no NVIDIA GPU")
            return
        batches = {
            network: self._fitting_batches(network) for network in dict.fromkeys(self.arguments.network)
        }
        self.progress.left = sum(map(self._count_cases, batches.values()))
        for network, fitting in batches.items():
            self._measure_network(network, fitting)

    def _fitting_batches(self, network: str) -> list[int]:
        """Return the batches of which processes of two settings, at the least, fit into memory."""
        fitting = []
        for batch in dict.fromkeys(self.arguments.batch):
            if self._at_once(network, batch) >= LEAST_AT_ONCE:
                fitting.append(batch)
                continue
            needed_gib = LEAST_AT_ONCE * SIZES[network].training_gib(batch, self.arguments.optimizer)
            reason = (
                f"two settings side by side take about {needed_gib:.1f} GiB, and"
                f" {self.machine.free_gib:.1f} GiB are free"
            )
            self.session.recorder.skip(f"{network} batch {batch}", "all", reason)
        return fitting

    def _at_once(self, network: str, batch: int) -> int:
        return self.machine.at_once(SIZES[network].training_gib(batch, self.arguments.optimizer))

    def _count_cases(self, batches: Sequence[int]) -> int:
        if TODAY not in self.arguments.settings:
            return len(batches)
        searches = min(1, len(batches)) if self.arguments.search_batch else len(batches)
        return len(batches) + searches * count_cases(self.knobs, self.arguments.knobs)

    def _measure_network(self, network: str, batches: Sequence[int]) -> None:
        best: SearchResult | None = None
        for batch in batches:
            if TODAY in self.arguments.settings and (best is None or not self.arguments.search_batch):
                best = self._search(network, self._batch_to_search(network, batch))
            self._compare(network, batch, best)

    def _batch_to_search(self, network: str, batch: int) -> int:
        """Return the batch to search at; the measured one if the requested one does not fit."""
        requested: int | None = self.arguments.search_batch
        return requested if requested and self._at_once(network, requested) >= LEAST_AT_ONCE else batch

    def _search(self, network: str, batch: int) -> SearchResult:
        search = Search(
            name=f"{network} batch {batch}",
            knobs=self.knobs,
            searched=self.arguments.knobs,
            limits=self.search_limits,
            session=self.session,
            at_once=self._at_once(network, batch),
            make_variant=lambda name, configuration: self._variant(name, configuration, network, batch),
            progress=self.progress,
            most_s=self.arguments.search_total_seconds,
        )
        return search.run()

    def _compare(self, network: str, batch: int, best: SearchResult | None) -> None:
        """Measure stock in turn with the others in fresh processes, in groups that fit into memory."""
        name = f"{network} batch {batch}"
        configurations = self._configurations(name, best)
        facts = self._facts(name, network, batch, configurations, best)
        others = [setting for setting in configurations if setting != STOCK and setting in facts]
        room = self._at_once(network, batch) - 1
        groups = [others[start : start + room] for start in range(0, len(others), room)] or [[]]
        self.progress.left += len(groups) - 1
        for number, group in enumerate(groups, 1):
            variants = [
                replace(
                    self._variant(setting, configurations[setting], network, batch, facts.get(setting)),
                    peak_name=f"tensorflow {dtype_of(configurations[setting])}",
                )
                for setting in (STOCK, *group)
            ]
            case = name if len(groups) == 1 else f"{name} part {number}"
            self.progress.measure(Case(name=case, variants=variants, compare=compare_losses), self.session)

    def _configurations(self, case: str, best: SearchResult | None) -> dict[str, Configuration]:
        configurations = {STOCK: stock_configuration(self.knobs)}
        if ARTICLE in self.arguments.settings:
            if self.arguments.device == "gpu":
                self.session.recorder.skip(case, ARTICLE, "the article's settings are a CPU's")
            else:
                configurations[ARTICLE] = article_configuration(self.knobs, self.machine)
        if best is not None:
            configurations[TODAY] = best.configuration
        return configurations

    def _facts(
        self,
        case: str,
        network: str,
        batch: int,
        configurations: Mapping[str, Configuration],
        best: SearchResult | None,
    ) -> dict[str, dict[str, Any]]:
        """Return the facts of each setting before it is timed; one whose proof fails is left out."""
        facts = {}
        for setting, configuration in configurations.items():
            message = f"{case}: looking at the kernels of {setting}"
            self.session.recorder.progress(message, done=self.progress.done, total=self.progress.total)
            try:
                proven = self._prove(configuration, network, batch)
            except VariantError as error:
                self.session.recorder.failure(case, setting, str(error))
                continue
            variables = " ".join(f"{name}={text}" for name, text in environment_of(configuration).items())
            facts[setting] = {
                "knobs": describe(configuration, self.knobs),
                "environment": variables,
                **proven,
            }
            if setting == ARTICLE:
                facts[setting] |= article_facts(self.machine, proven.get("openmp_runtime"))
            if setting == TODAY and best is not None:
                facts[setting]["earned"] = best.summary()
        return facts

    def _prove(self, configuration: Configuration, network: str, batch: int) -> Mapping[str, Any]:
        """Return the facts of a process that trains one step with the library's log on."""
        training = self._variant("proof", configuration, network, batch)
        proof = replace(training, factory=PROOF, environment={**training.environment, **LOGGED})
        try:
            return proof.start()
        finally:
            proof.close()

    def _variant(
        self,
        name: str,
        configuration: Configuration,
        network: str,
        batch: int,
        facts: Mapping[str, Any] | None = None,
    ) -> WorkerVariant:
        device = self.arguments.device
        job = {
            "network": network,
            "batch": batch,
            "optimizer": self.arguments.optimizer,
            "seed": self.arguments.seed,
            "device": device,
        }
        hidden = {} if device == "gpu" else {"CUDA_VISIBLE_DEVICES": "-1"}
        return WorkerVariant(
            name=name,
            unit="images/s",
            factory=TRAINING,
            arguments={**job, **arguments_of(configuration)},
            environment=program.environment({**QUIET, **hidden, **environment_of(configuration)}),
            facts=facts or {},
        )


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    return program.run(
        ENTRY,
        arguments,
        modules=["tensorflow"],
        requirements=ENTRY.requirements_for(["--device", arguments.device]),
        packages=("tensorflow", "tensorflow-cpu", "keras", "numpy"),
        work=lambda session: _work(arguments, session),
    )


def _work(arguments: argparse.Namespace, session: Session) -> None:
    machine = inspect_machine(arguments.device)
    search = replace(
        SEARCH,
        rounds=arguments.search_rounds,
        max_s=arguments.search_seconds,
        slice_s=min(SEARCH.slice_s, arguments.slice_seconds),
        warm_up_s=min(SEARCH.warm_up_s, arguments.warm_up_seconds),
    )
    Experiments(
        arguments=arguments,
        machine=machine,
        knobs=knobs_of(arguments.device, machine),
        search_limits=search,
        session=session,
    ).run()


if __name__ == "__main__":
    sys.exit(main())
