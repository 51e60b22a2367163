"""Run the experiments: for each network and batch the search, the proofs, and the settings side by side."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..harness import program
from ..harness.case import Case, Limits, Session
from ..harness.process import VariantError
from ..harness.records import Failure, Skip
from ..harness.variant import WorkerVariant
from . import article
from .arguments import ARTICLE, STOCK, TODAY
from .knobs import Knob, Setting, arguments_of, describe, environment_of, stock
from .losses import compare
from .machine import Machine
from .search import Found, Progress, Search, cases_of
from .sizes import SIZES

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}

LOGGED = {"ONEDNN_VERBOSE": "1"}
"""Makes oneDNN print every primitive that it runs; proof.py reads it."""

TRAINING, PROOF = "tensorflow_cpu.training:train", "tensorflow_cpu.proof:prove"

LEAST_AT_ONCE = 2


@dataclass(slots=True, kw_only=True)
class Experiments:
    """All that one call of the program measures.

    Args:
        arguments: As parsed.
        machine: What it runs on.
        knobs: Of this machine.
        search_limits: Of each case of a search; those of the others are the session's.
        session: What the cases share.
    """

    arguments: argparse.Namespace
    machine: Machine
    knobs: Sequence[Knob]
    search_limits: Limits
    session: Session
    progress: Progress = field(default_factory=Progress)

    def run(self) -> None:
        """Measure every network at every batch."""
        if self.arguments.device == "gpu" and self.machine.gpu is None:
            self._skip("tensorflow", "gpu", "this machine has no NVIDIA GPU")
            return
        plan = {network: self._batches(network) for network in dict.fromkeys(self.arguments.network)}
        self.progress.left = sum(self._cases(batches) for batches in plan.values())
        for network, batches in plan.items():
            self._network(network, batches)

    def _batches(self, network: str) -> list[int]:
        """Return the batches that fit into memory; a process of each of two settings must, at the least."""
        fitting = []
        for batch in dict.fromkeys(self.arguments.batch):
            needed_gib = self._training_gib(network, batch)
            if self.machine.at_once(needed_gib) >= LEAST_AT_ONCE:
                fitting.append(batch)
                continue
            reason = (
                f"two settings side by side take about {LEAST_AT_ONCE * needed_gib:.1f} GiB, and"
                f" {self.machine.free_gib:.1f} GiB are free"
            )
            self._skip(f"{network} batch {batch}", "all", reason)
        return fitting

    def _training_gib(self, network: str, batch: int) -> float:
        return SIZES[network].training_gib(batch, self.arguments.optimizer)

    def _cases(self, batches: Sequence[int]) -> int:
        """Return how many cases a network has."""
        if TODAY not in self.arguments.settings:
            return len(batches)
        searches = min(1, len(batches)) if self.arguments.search_batch else len(batches)
        return len(batches) + searches * cases_of(self.knobs, self.arguments.knobs)

    def _network(self, network: str, batches: Sequence[int]) -> None:
        found: Found | None = None
        for batch in batches:
            if TODAY in self.arguments.settings and (found is None or not self.arguments.search_batch):
                found = self._search(network, self._searched_batch(network, batch))
            self._compare(network, batch, found)

    def _searched_batch(self, network: str, batch: int) -> int:
        """Return the batch to search at; one that does not fit gives way to the one that is measured."""
        wanted = self.arguments.search_batch
        if wanted and self.machine.at_once(self._training_gib(network, wanted)) >= LEAST_AT_ONCE:
            return int(wanted)
        return batch

    def _search(self, network: str, batch: int) -> Found:
        search = Search(
            name=f"{network} batch {batch}",
            knobs=self.knobs,
            searched=self.arguments.knobs,
            limits=self.search_limits,
            session=self.session,
            at_once=self.machine.at_once(self._training_gib(network, batch)),
            variant=lambda name, setting: self._variant(name, setting, network, batch),
            progress=self.progress,
            most_s=self.arguments.search_total_seconds,
        )
        return search.run()

    def _compare(self, network: str, batch: int, found: Found | None) -> None:
        """Measure stock beside the others in fresh processes, in groups that fit into memory."""
        name = f"{network} batch {batch}"
        settings = self._settings(name, found)
        facts = self._facts(name, network, batch, settings, found)
        others = [setting for setting in settings if setting != STOCK and setting in facts]
        room = self.machine.at_once(self._training_gib(network, batch)) - 1
        groups = [others[start : start + room] for start in range(0, len(others), room)] or [[]]
        self.progress.left += len(groups) - 1
        for number, group in enumerate(groups, 1):
            variants = [
                self._variant(each, settings[each], network, batch, facts=facts.get(each))
                for each in (STOCK, *group)
            ]
            case = name if len(groups) == 1 else f"{name} part {number}"
            self.progress.measure(Case(name=case, variants=variants, compare=compare), self.session)

    def _settings(self, case: str, found: Found | None) -> dict[str, Setting]:
        settings = {STOCK: stock(self.knobs)}
        if ARTICLE in self.arguments.settings:
            if self.arguments.device == "gpu":
                self._skip(case, ARTICLE, "the article's settings are a CPU's")
            else:
                settings[ARTICLE] = article.article(self.knobs, self.machine)
        if found is not None:
            settings[TODAY] = found.setting
        return settings

    def _facts(
        self, case: str, network: str, batch: int, settings: Mapping[str, Setting], found: Found | None
    ) -> dict[str, dict[str, Any]]:
        """Return what is known of each setting before it is timed; one whose proof fails is left out."""
        facts = {}
        for name, setting in settings.items():
            told = f"{case}: looking at the kernels of {name}"
            self.session.recorder.progress(
                told, done=self.progress.done, total=self.progress.done + self.progress.left
            )
            try:
                proven = self._proof(setting, network, batch)
            except VariantError as error:
                self.session.recorder.failure(Failure(case=case, setting=name, message=str(error)))
                continue
            variables = " ".join(f"{key}={text}" for key, text in environment_of(setting).items())
            facts[name] = {"knobs": describe(setting, self.knobs), "environment": variables, **proven}
            if name == ARTICLE:
                facts[name] |= article.told(self.machine, proven)
            if name == TODAY and found is not None:
                facts[name]["earned"] = found.told()
        return facts

    def _proof(self, setting: Setting, network: str, batch: int) -> Mapping[str, Any]:
        """Return the facts of a process that trains one step with the library's log on."""
        variant = self._variant("proof", setting, network, batch, factory=PROOF, variables=LOGGED)
        try:
            return variant.start()
        finally:
            variant.close()

    def _variant(
        self,
        name: str,
        setting: Setting,
        network: str,
        batch: int,
        *,
        factory: str = TRAINING,
        variables: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> WorkerVariant:
        """Return a process that trains, or proves, in a setting; not yet started."""
        device = self.arguments.device
        shared = {
            "network": network,
            "batch": batch,
            "optimizer": self.arguments.optimizer,
            "seed": self.arguments.seed,
            "device": device,
        }
        hidden = {} if device == "gpu" else {"CUDA_VISIBLE_DEVICES": "-1"}
        changes = {**QUIET, **hidden, **environment_of(setting), **(variables or {})}
        return WorkerVariant(
            name=name,
            unit="images/s",
            factory=factory,
            arguments={**shared, **arguments_of(setting)},
            environment=program.environment(changes),
            facts=facts or {},
        )

    def _skip(self, case: str, setting: str, reason: str) -> None:
        self.session.recorder.skip(Skip(case=case, setting=setting, reason=reason))
