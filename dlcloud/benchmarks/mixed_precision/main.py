"""Measure what mixed precision is worth: training steps in FP32 and in less, side by side."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from .. import catalog
from ..harness import hardware, program
from ..harness.arm import WorkerArm
from ..harness.protocol import Case, Limits, Session, measure
from ..harness.records import Skip
from . import proving, settings
from .comparison import DIGITS_BATCH, compare_training
from .proving import Proven
from .settings import Machine, Setting
from .sizes import DEPTHWISE, DIGITS, SIZES

ENTRY = catalog.BENCHMARKS["mixed_precision"]

IMAGENET = 1_281_167
"""Training images of ImageNet's 1,000 classes. Source: Russakovsky et al. 2014, table 2."""

ENGINES = {"pytorch": ("torch",), "keras": ("torch", "keras")}
"""The modules that each engine needs."""

WARM_UP_S = 60.0
"""Steps of the large networks take seconds."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit status."""
    arguments = parse(argv)
    try:
        machine = settings.this_machine(arguments.device)
    except LookupError as error:
        sys.stderr.write(f"{error}\n")
        return program.FAILED
    needed = [*(module for engine in arguments.engine for module in ENGINES[engine])]
    needed += ["sklearn"] if DIGITS in arguments.network else []
    for missing in (module for module in needed if find_spec(module) is None):
        sys.stderr.write(f"{missing} is not installed: pip install -r {ENTRY.requirements_path}\n")
        return program.FAILED
    limits = program.limits_of(arguments)
    with tempfile.TemporaryDirectory(prefix="dlcloud-compiled-") as compiled:
        run = _Run(arguments=arguments, machine=machine, compiled=compiled)
        return program.run_work(
            ENTRY.name,
            arguments,
            limits=limits,
            packages=("torch", "keras", "numpy", "triton", "nvidia-cudnn-cu13"),
            work=run.work,
        )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.mixed_precision", description=ENTRY.summary)
    _add_what(parser)
    _add_how(parser)
    program.add_arguments(parser, limits=Limits())
    program.add_round_arguments(parser, limits=Limits(warm_up_s=WARM_UP_S))
    arguments = parser.parse_args(argv)
    for repeated in ("network", "engine", "batch"):
        setattr(arguments, repeated, list(dict.fromkeys(getattr(arguments, repeated))))
    _check(parser, arguments)
    arguments.threads = arguments.threads or hardware.physical_cores()
    return arguments


def _add_what(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is trained")
    group.add_argument(
        "--network", nargs="+", choices=tuple(SIZES), default=["resnet50"], metavar="NAME",
        help=f"{', '.join(SIZES)}; digits is trained to the end (default: resnet50)",
    )  # fmt: skip
    group.add_argument(
        "--engine", nargs="+", choices=tuple(ENGINES), default=["pytorch"],
        help="pytorch, or keras on it with its policies (default: pytorch)",
    )  # fmt: skip
    group.add_argument(
        "--batch", nargs="+", type=program.positive, default=[8], metavar="N",
        help="images a step (default: 8)",
    )  # fmt: skip
    group.add_argument(
        "--size", type=program.positive, default=None, metavar="PIXELS",
        help="height and width of the images (default: as published for each network)",
    )  # fmt: skip
    group.add_argument(
        "--head", choices=("published", "small"), default="published",
        help="small: global pooling, dropout and one layer, as in the article (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--optimizer", choices=("sgd", "adam"), default="sgd",
        help="sgd with momentum, or adam (default: %(default)s)",
    )  # fmt: skip


def _add_how(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how")
    knobs = ", ".join(knob.value for knob in settings.Knob)
    group.add_argument(
        "--setting", nargs="+", type=_setting, default=None, metavar="SETTING",
        help=f"fp32, tf32, bf16 or fp16, with +knobs of {knobs}; fp32 is the baseline, asked for or not "
        "(default: what tells most on the device)",
    )  # fmt: skip
    group.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="auto takes the first GPU, where there is one (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--threads", type=program.positive, default=None, metavar="N",
        help="threads of the engine (default: one per physical core)",
    )  # fmt: skip
    group.add_argument(
        "--epoch-images", type=program.positive, default=IMAGENET, metavar="N",
        help="images that the computed time of an epoch is of (default: ImageNet's %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--epochs", type=program.positive, default=12, metavar="N",
        help="epochs that digits is trained for (default: %(default)s)",
    )  # fmt: skip


def _setting(text: str) -> str:
    """Read a setting and return its name, so that two spellings of one are one."""
    try:
        return Setting.parse(text).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse what cannot be meant."""
    for text in arguments.setting or ():
        alien = settings.PYTORCH_KNOBS & Setting.parse(text).knobs
        if alien and "keras" in arguments.engine:
            names = ", ".join(sorted(knob.value for knob in alien))
            parser.error(f"argument --setting: {names} in {text!r} is for pytorch alone; keras was asked for")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What a case is of; `batch` is the digits' own where they are trained."""

    network: str
    engine: str
    batch: int

    @property
    def name(self) -> str:
        batch = f" batch {self.batch}" if self.network != DIGITS else ""
        return f"{self.network}{batch}" + (" keras" if self.engine == "keras" else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of the program; `compiled` is the folder where torch.compile keeps what it made."""

    arguments: argparse.Namespace
    machine: Machine
    compiled: str

    def work(self, session: Session) -> None:
        """Prove and measure one subject after the other."""
        subjects = self._subjects()
        for done, subject in enumerate(subjects):
            after = len(subjects) - done - 1
            cases = self._earlier(subject, session) or self._cases(subject, session, done, len(subjects))
            measure(cases, session, before=done, after=after)

    def _subjects(self) -> list[_Subject]:
        chosen = self.arguments
        subjects = [
            _Subject(network=network, engine=engine, batch=DIGITS_BATCH if network == DIGITS else batch)
            for network, engine, batch in product(chosen.network, chosen.engine, chosen.batch)
        ]
        return list(dict.fromkeys(subjects))

    def _earlier(self, subject: _Subject, session: Session) -> list[Case]:
        """Return the cases of a subject that were measured before, if they hold all of its settings."""
        found = [key for key in session.earlier if key[0].split(", part ")[0] == subject.name]
        wanted = {each.name for each in self._wanted(subject) if self.machine.lacking(each) is None}
        if not found or not wanted <= {name for _, names in found for name in names}:
            return []
        bare = Proven(setting=Setting.parse("fp32"), memory_mib=0.0, facts={})
        return [
            Case(name=name, arms=[self._arm(subject, _named(bare, setting)) for setting in names])
            for name, names in found
        ]

    def _cases(self, subject: _Subject, session: Session, done: int, total: int) -> list[Case]:
        recorder = session.recorder
        possible = []
        for setting in self._wanted(subject):
            reason = self.machine.lacking(setting)
            if reason is None:
                possible.append(setting)
            else:
                recorder.skip(Skip(case=subject.name, setting=setting.name, reason=reason))
        recorder.progress(f"{subject.name}: proving {len(possible)} settings", done=done, total=total)
        proven = proving.prove(subject.name, possible, partial(self._proof, subject), recorder)
        if not proven or proven[0].setting.reduced or proven[0].setting.knobs:
            return []
        groups, too_large = proving.packed(proven, settings.available_mib(self.machine))
        for each in too_large:
            needed = proven[0].memory_mib + each.memory_mib
            reason = f"it and its baseline need {needed:.0f} MiB at once; so much is not free"
            recorder.skip(Skip(case=subject.name, setting=each.setting.name, reason=reason))
        return [
            Case(
                name=subject.name + (f", part {number}" if number > 1 else ""),
                arms=[self._arm(subject, each) for each in group],
                contenders=[each.setting.name for each in group if not each.setting.reduced],
                compare=compare_training if subject.network == DIGITS else lambda _ours, _theirs: {},
            )
            for number, group in enumerate(groups, 1)
        ]

    def _wanted(self, subject: _Subject) -> list[Setting]:
        """Return the settings, the baseline first."""
        asked = [Setting.parse(name) for name in self.arguments.setting or ()]
        asked = asked or settings.defaults(
            self.machine, subject.engine, depthwise=subject.network in DEPTHWISE
        )
        return list(dict.fromkeys([Setting.parse("fp32"), *asked]))

    def _proof(self, subject: _Subject, setting: Setting) -> WorkerArm:
        return WorkerArm(
            name=setting.name,
            unit="",
            factory="mixed_precision.training:prove",
            arguments=self._described(subject, setting),
            environment=self._environment(setting),
        )

    def _arm(self, subject: _Subject, proven: Proven) -> WorkerArm:
        setting = proven.setting
        arguments = self._described(subject, setting)
        trains_digits = subject.network == DIGITS
        return WorkerArm(
            name=setting.name,
            unit="images/s",
            factory=f"mixed_precision.{'convergence:train_digits' if trains_digits else 'training:train'}",
            arguments={**arguments, "epochs": self.arguments.epochs} if trains_digits else arguments,
            environment=self._environment(setting),
            latencies=True,
            known={**proven.facts, "epoch_images": self.arguments.epoch_images},
        )

    def _described(self, subject: _Subject, setting: Setting) -> dict[str, Any]:
        chosen = self.arguments
        return {
            "framework": subject.engine,
            "network": subject.network,
            "setting": setting.name,
            "batch": subject.batch,
            "size": SIZES[DIGITS] if subject.network == DIGITS else chosen.size or SIZES[subject.network],
            "device": self.machine.device,
            "threads": chosen.threads,
            "optimizer": "adam" if subject.network == DIGITS else chosen.optimizer,
            "small_head": chosen.head == "small",
            "seed": chosen.seed,
        }

    def _environment(self, setting: Setting) -> dict[str, str]:
        keras = {"KERAS_BACKEND": "torch", "KERAS_TORCH_DEVICE": self.machine.device}
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(Path(self.compiled, "inductor"))}
        triton = {"TRITON_CACHE_DIR": str(Path(self.compiled, "triton"))}
        wanted = setting.environment(self.arguments.threads)
        return program.environment({**keras, **cache, **triton, **wanted})


def _named(proven: Proven, name: str) -> Proven:
    """Return the same for another setting."""
    return Proven(setting=Setting.parse(name), memory_mib=proven.memory_mib, facts=proven.facts)
