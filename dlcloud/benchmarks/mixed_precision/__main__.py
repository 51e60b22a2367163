"""Compare training in FP32 with mixed precision: `python3 -m benchmarks.mixed_precision`.

For each network and batch, every setting first trains a few steps in a worker, which proves by its kernels
that it computes in the precision that it names (`settings.py` judges). The proven ones become a case, in
which all settings that fit into memory together are timed in turn. A setting without proof is never timed.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from ..harness import program
from ..harness.case import Case, Session, WorkerVariant
from ..harness.protocol import measure
from ..harness.roofline import Work
from .settings import (
    BASELINE,
    DEPTHWISE_NETWORKS,
    DIGITS,
    ENGINES,
    ENTRY,
    IMAGE_SIZES,
    DeviceCapabilities,
    ProvenSetting,
    TrainingSetting,
    available_mib,
    default_settings,
    detect_capabilities,
    group_by_memory,
    parse,
    prove_settings,
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    try:
        capabilities = detect_capabilities(arguments.device)
    except LookupError as error:
        sys.stderr.write(f"{error}\n")
        return program.FAILED
    modules = [module for engine in arguments.engine for module in ENGINES[engine]]
    modules += ["sklearn"] if DIGITS in arguments.network else []
    with tempfile.TemporaryDirectory(prefix="dlcloud-compiled-") as compiled:
        comparison = TrainingComparison(arguments=arguments, capabilities=capabilities, compiled=compiled)
        return program.run(
            ENTRY,
            arguments,
            modules=modules,
            packages=("torch", "keras", "numpy", "triton", "nvidia-cudnn-cu13"),
            work=comparison.run,
        )


DIGITS_BATCH = 64
"""Images a step when the digits are trained."""


def compare_training(reference: list[list[float]], other: list[list[float]]) -> dict[str, Any]:
    """Return how a setting's training differs from the baseline's.

    Both are, for each image, 1 if it is answered correctly, else 0; and the mean loss of each epoch.
    """
    (correct, losses), (other_correct, other_losses) = reference, other
    share = 100 / len(correct)
    gained = sum(theirs > ours for ours, theirs in zip(correct, other_correct, strict=True))
    lost = sum(theirs < ours for ours, theirs in zip(correct, other_correct, strict=True))
    return {
        "baseline_accuracy_percent": round(share * sum(correct), 4),
        "accuracy_drop_points": round(share * (lost - gained), 4),
        "only_the_baseline_is_right": lost,
        "only_this_is_right": gained,
        "p_value_of_equal_accuracy": round(sign_test(gained, lost), 4),
        "largest_gap_of_the_loss_curves": round(
            max(abs(ours - theirs) for ours, theirs in zip(losses, other_losses, strict=True)), 5
        ),
        "final_loss_over_baseline": round(other_losses[-1] / losses[-1], 4) if losses[-1] else None,
    }


def sign_test(wins: int, losses: int) -> float:
    """Return the probability of a split at least this uneven if both sides are equally probable (two-sided).

    Source: McNemar 1947, in its exact form.
    """
    count = wins + losses
    uneven = sum(math.comb(count, number) for number in range(min(wins, losses) + 1))
    return min(1.0, 2.0 * uneven / float(2**count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the settings of a case train; `batch` is DIGITS_BATCH for the digits."""

    network: str
    engine: str
    batch: int

    @property
    def name(self) -> str:
        batch = f" batch {self.batch}" if self.network != DIGITS else ""
        return f"{self.network}{batch}" + (" keras" if self.engine == "keras" else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingComparison:
    """One run of the program; `compiled` is the folder where torch.compile keeps its output."""

    arguments: argparse.Namespace
    capabilities: DeviceCapabilities
    compiled: str

    def run(self, session: Session) -> None:
        subjects = self._subjects()
        for done, subject in enumerate(subjects):
            after = len(subjects) - done - 1
            cases = self._measured_cases(subject, session)
            cases = cases or self._prove_cases(subject, session, done, len(subjects))
            measure(cases, session, before=done, after=after)

    def _subjects(self) -> list[Subject]:
        arguments = self.arguments
        subjects = [
            Subject(network=network, engine=engine, batch=DIGITS_BATCH if network == DIGITS else batch)
            for network, engine, batch in product(arguments.network, arguments.engine, arguments.batch)
        ]
        return list(dict.fromkeys(subjects))

    def _measured_cases(self, subject: Subject, session: Session) -> list[Case]:
        """Return the cases of a subject that were measured before, if they hold all of its settings."""
        earlier = [key for key in session.earlier if key[0].split(", part ")[0] == subject.name]
        possible = {
            setting.name
            for setting in self._settings(subject)
            if self.capabilities.explain_unsupported(setting) is None
        }
        if not earlier or not possible <= {name for _, names in earlier for name in names}:
            return []
        return [
            Case(
                name=case,
                variants=[
                    self._variant(subject, _make_unproven(name), _make_unproven(name)) for name in names
                ],
            )
            for case, names in earlier
        ]

    def _prove_cases(self, subject: Subject, session: Session, done: int, total: int) -> list[Case]:
        """Return cases of the settings that are proven and fit into memory; record the others."""
        recorder = session.recorder
        possible = []
        for setting in self._settings(subject):
            reason = self.capabilities.explain_unsupported(setting)
            if reason is None:
                possible.append(setting)
            else:
                recorder.skip(subject.name, setting.name, reason)
        recorder.progress(f"{subject.name}: proving {len(possible)} settings", done=done, total=total)
        proven = prove_settings(subject.name, possible, partial(self._proving_variant, subject), recorder)
        if not proven or proven[0].setting != BASELINE:
            return []
        groups, too_large = group_by_memory(proven, available_mib(self.capabilities))
        for member in too_large:
            mib = proven[0].memory_mib + member.memory_mib
            reason = f"it and its baseline need {mib:.0f} MiB at the same time, and less is free"
            recorder.skip(subject.name, member.setting.name, reason)
        return [self._case(subject, number, group) for number, group in enumerate(groups, 1)]

    def _case(self, subject: Subject, number: int, group: Sequence[ProvenSetting]) -> Case:
        return Case(
            name=subject.name + (f", part {number}" if number > 1 else ""),
            variants=[self._variant(subject, proven, group[0]) for proven in group],
            contenders=[proven.setting.name for proven in group if not proven.setting.is_reduced],
            compare=compare_training if subject.network == DIGITS else lambda _ours, _theirs: {},
        )

    def _settings(self, subject: Subject) -> list[TrainingSetting]:
        settings = [TrainingSetting.parse(name) for name in self.arguments.setting or ()]
        if not settings:
            depthwise = subject.network in DEPTHWISE_NETWORKS
            settings = default_settings(self.capabilities, subject.engine, depthwise=depthwise)
        return list(dict.fromkeys([BASELINE, *settings]))

    def _proving_variant(self, subject: Subject, setting: TrainingSetting) -> WorkerVariant:
        return WorkerVariant(
            name=setting.name,
            unit="",
            factory="mixed_precision.training:prove",
            arguments=self._job(subject, setting),
            environment=self._environment(setting),
        )

    def _variant(self, subject: Subject, proven: ProvenSetting, baseline: ProvenSetting) -> WorkerVariant:
        """Return a setting; its work is the baseline's, whatever its kernels do instead."""
        setting = proven.setting
        counted = Work.of_facts(baseline.facts)
        work = counted.computed_in(setting.precision.value).facts() if counted else {}
        job = self._job(subject, setting)
        trains_digits = subject.network == DIGITS
        return WorkerVariant(
            name=setting.name,
            unit="images/s",
            factory=f"mixed_precision.training:{'train_digits' if trains_digits else 'train'}",
            arguments={**job, "epochs": self.arguments.epochs} if trains_digits else job,
            environment=self._environment(setting),
            latencies=True,
            facts={**proven.facts, **work, "epoch_images": self.arguments.epoch_images},
            peak_name=f"pytorch {setting.precision.value}",
        )

    def _job(self, subject: Subject, setting: TrainingSetting) -> dict[str, Any]:
        arguments = self.arguments
        size = IMAGE_SIZES[subject.network]
        return {
            "framework": subject.engine,
            "network": subject.network,
            "setting": setting.name,
            "batch": subject.batch,
            "size": size if subject.network == DIGITS else arguments.size or size,
            "device": self.capabilities.device,
            "threads": arguments.threads,
            "optimizer": "adam" if subject.network == DIGITS else arguments.optimizer,
            "small_head": arguments.head == "small",
            "seed": arguments.seed,
        }

    def _environment(self, setting: TrainingSetting) -> dict[str, str]:
        return program.environment(
            {
                "KERAS_BACKEND": "torch",
                "KERAS_TORCH_DEVICE": self.capabilities.device,
                "TORCHINDUCTOR_CACHE_DIR": str(Path(self.compiled, "inductor")),
                "TRITON_CACHE_DIR": str(Path(self.compiled, "triton")),
                **setting.environment(self.arguments.threads),
            }
        )


def _make_unproven(name: str) -> ProvenSetting:
    """Return a setting whose proof is in earlier records."""
    return ProvenSetting(setting=TrainingSetting.parse(name), memory_mib=0.0, facts={})


if __name__ == "__main__":
    sys.exit(main())
