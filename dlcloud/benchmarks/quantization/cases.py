"""Make the cases of the quantization benchmark: each network and batch, in every setting that runs here."""

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import product

from ..harness import program
from ..harness.case import Case
from ..harness.process import VariantError
from ..harness.records import Failure, Recorder, Skip
from ..harness.variant import WorkerVariant
from .agreement import accuracy, agreement
from .engines import DEFAULT, ENGINES, Isa
from .formats import only_batch, title_of
from .settings import Setting, asked, settings_of

HELD_PER_BYTE = 2.5
ENGINE_BYTES = 256 << 20
"""What a worker holds at most: its model, which engines rewrite as they load it, and the engine itself.

Measured: 1.9 to 2.4 bytes for each of the model's, engine included, of VGG16 and VGG19 in fp32; 4.3 of
ResNet-50. What an engine takes beyond that is learned from the first of the case.
"""


def cases_of(arguments: argparse.Namespace, recorder: Recorder) -> list[Case]:
    """Build the models and make a case of each network and batch; record what cannot be built."""
    cases: list[Case] = []
    networks, batches = list(dict.fromkeys(arguments.network)), list(dict.fromkeys(arguments.batch))
    sets = [Isa(name) for name in dict.fromkeys(arguments.isa)]
    total = (len(networks) + bool(arguments.model)) * len(sets) * len(batches)
    if arguments.model is not None:
        networks.append(description_of(arguments))
    for network, isa in product(networks, sets):
        what = f"{title_of(network)}: building the models that are not cached"
        recorder.progress(what, done=0, total=total)
        settings: list[Setting] = []
        for engine in (ENGINES[name] for name in arguments.engine):
            try:
                settings += settings_of(network, engine, isa, arguments, recorder)
            except VariantError as error:
                case = f"{title_of(network)} {engine.name}"
                recorder.failure(Failure(case=case, setting=None, message=str(error)))
        if settings:
            taken = _taken(network, batches, recorder)
            cases.extend(_case(network, batch, settings, arguments) for batch in taken)
    return cases


def description_of(arguments: argparse.Namespace) -> str:
    """Return the path of the file that describes the user's model.

    Raises:
        VariantError: The model or its data cannot be used.
    """
    arguments.cache.mkdir(parents=True, exist_ok=True)
    told = {
        "file": str(arguments.model),
        "data": str(arguments.data) if arguments.data else None,
        "shape": arguments.input_shape,
        "cache": str(arguments.cache),
    }
    description: str = asked("quantization.user_model:describe", told, {})["description"]
    return description


def _taken(network: str, batches: Sequence[int], recorder: Recorder) -> list[int]:
    """Return the batches that a network takes, and record those that it does not."""
    only = only_batch(network)
    for batch in batches:
        if only not in {None, batch}:
            reason = f"the model takes batches of {only} only"
            recorder.skip(Skip(case=title_of(network), setting=f"batch {batch}", reason=reason))
    return [batch for batch in batches if only in {None, batch}]


def _case(network: str, batch: int, settings: Sequence[Setting], arguments: argparse.Namespace) -> Case:
    """Make a case of all engines, each with a baseline of its own."""
    names = {_name(setting, arguments): setting for setting in settings}
    first = {setting.engine.name: name for name, setting in reversed(names.items())}
    isa = settings[0].isa
    labels = settings[0].labels
    return Case(
        name=" ".join([f"{title_of(network)} batch {batch}", *([] if isa is Isa.NATIVE else [isa.value])]),
        variants=[
            _variant(name, setting, names[first[setting.engine.name]], batch=batch, arguments=arguments)
            for name, setting in names.items()
        ],
        compare=agreement if labels is None else partial(accuracy, labels),
        baselines={name: first[setting.engine.name] for name, setting in names.items()},
        contenders=[name for name, setting in names.items() if setting.precision.whole],
    )


def _name(setting: Setting, arguments: argparse.Namespace) -> str:
    """Name the engine only where it is not the default alone."""
    prefix = "" if arguments.engine == [DEFAULT] else f"{setting.engine.name} "
    return prefix + setting.precision.value


def _variant(
    name: str, setting: Setting, baseline: Setting, *, batch: int, arguments: argparse.Namespace
) -> WorkerVariant:
    engine = setting.engine
    threads = {"OMP_NUM_THREADS": str(arguments.threads)}
    smaller = {"times_smaller": round(baseline.size_bytes / setting.size_bytes, 4)}
    on_gpu = arguments.device == "cuda"
    return WorkerVariant(
        name=name,
        unit="images/s",
        factory=engine.infer_factory(setting.precision),
        arguments={
            "network": setting.network,
            "batch": batch,
            "threads": arguments.threads,
            "seed": arguments.seed,
            "model": setting.model,
            **({"device": arguments.device} if engine.gpu_precisions else {}),
        },
        environment=program.environment({**engine.environment_for(setting.isa), **threads}),
        latencies=batch == 1,
        python=setting.python,
        expected_bytes=round(HELD_PER_BYTE * setting.size_bytes) + ENGINE_BYTES,
        facts={
            **setting.proof,
            **({} if on_gpu else {"isa_cap": setting.isa.value}),
            **({} if setting is baseline or on_gpu else smaller),
        },
    )
