"""Run the experiments: for each network and batch the search, the proofs, and the settings side by side."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..harness import program
from ..harness.case import Case, Limits, Session, VariantError, WorkerVariant
from .arguments import ARTICLE, STOCK, TODAY
from .knobs import (
    Configuration,
    Knob,
    arguments_of,
    article_configuration,
    article_facts,
    describe,
    dtype_of,
    environment_of,
    stock_configuration,
)
from .machine import TrainingMachine
from .search import Progress, Search, SearchResult, compare_losses, count_cases
from .sizes import SIZES

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}

LOGGED = {"ONEDNN_VERBOSE": "1"}
"""Makes oneDNN print every primitive that it runs; proof.py reads it."""

TRAINING, PROOF = "tensorflow_cpu.training:train", "tensorflow_cpu.proof:prove"

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
        """Measure stock beside the others in fresh processes, in groups that fit into memory."""
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
