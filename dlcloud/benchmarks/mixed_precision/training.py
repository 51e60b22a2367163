"""The work of one setting: timed training steps on synthetic images, and the proof of what they compute in.

Runs inside workers. The factories at the end are what the program asks for by name.
"""

import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from . import capture
from .settings import Setting

MIB = 1 << 20
CLASSES = 1000
LEARNING_RATE = {"sgd": 1e-3, "adam": 1e-4}
"""Small, so that random weights and one batch keep the loss finite; for Adam the article's."""

STEPS_PROVED = 3


class Trainer(Protocol):
    """A network with its optimizer, in some framework and some setting."""

    def place(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
        """Bring images (batch, 3, size, size) float32 and labels (batch,) int64 to the device and layout."""

    def step(self, images: Any, labels: Any) -> float:  # noqa: ANN401 - what `place` gave
        """Train on a batch and return its loss, when the update is done."""

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits (batch, classes) float32 of images in evaluation mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Steps on one batch that stays in memory: what is timed is training, not reading."""

    trainer: Trainer
    batch: tuple[Any, Any]
    items_per_step: int
    facts: Mapping[str, Any]

    def step(self) -> None:
        """Train on the batch."""
        self.trainer.step(*self.batch)

    def outputs(self) -> list[list[float]]:
        """Return nothing: random weights have nothing to say."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a proof leaves: facts, and nothing to time."""

    facts: Mapping[str, Any]
    items_per_step: int = 0

    def step(self) -> None:
        """Do nothing."""

    def outputs(self) -> list[list[float]]:
        """Return nothing."""
        return []


def train(*, framework: str, setting: str, batch: int, **described: Any) -> Training:  # noqa: ANN401
    """Make a network ready for timing; the first step, with what is compiled in it, is done."""
    trainer, placed, first = _started(framework, setting, batch, **described)
    facts = {
        **engine_facts(framework, described["device"]),
        "weights": "random",
        "optimizer": described["optimizer"],
        "threads": torch.get_num_threads(),
        "image_size": described["size"],
        "first_step_s": round(first.seconds, 3),
    }
    return Training(trainer=trainer, batch=placed, items_per_step=batch, facts=facts)


def prove(*, framework: str, setting: str, batch: int, **described: Any) -> Proof:  # noqa: ANN401
    """Train a few steps, the last of them watched, and say which kernels ran.

    Facts: kernels {name: runs}; kernels_in_precision and kernels_in_all; first_step_s, which compiles where
    that is asked for; first_losses; memory_mib, the most that the process had of the device's memory.
    """
    trainer, placed, first = _started(framework, setting, batch, **described)
    losses = [first.loss, *(trainer.step(*placed) for _ in range(STEPS_PROVED - 2))]
    device, precision = described["device"], Setting.parse(setting).precision
    with capture.kernels(device, precision) as captured:
        losses.append(trainer.step(*placed))
    kernels = captured[0]
    return Proof(
        facts={
            "kernels": dict(kernels.seen.most_common()),
            "kernels_in_precision": kernels.reduced,
            "kernels_in_all": kernels.total,
            "first_step_s": round(first.seconds, 3),
            "first_losses": [round(loss, 5) for loss in losses],
            "memory_mib": round(peak_memory_mib(device), 1),
            **gpu_facts(device),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _First:
    loss: float
    seconds: float


def _started(
    framework: str,
    setting: str,
    batch: int,
    *,
    threads: int,
    **described: Any,  # noqa: ANN401
) -> tuple[Trainer, tuple[Any, Any], _First]:
    """Build, and train one step on a batch drawn from the seed."""
    torch.set_num_threads(threads)
    size, seed = described["size"], described["seed"]
    trainer = build(framework, setting=Setting.parse(setting), classes=CLASSES, **described)
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, 3, size, size, generator=generator)
    labels = torch.randint(CLASSES, (batch,), generator=generator)
    placed = trainer.place(images, labels)
    began = time.perf_counter()
    loss = trainer.step(*placed)
    return trainer, placed, _First(loss=loss, seconds=time.perf_counter() - began)


def build(framework: str, *, setting: Setting, optimizer: str, **described: Any) -> Trainer:  # noqa: ANN401
    """Make a trainer of the framework; only that framework is imported."""
    # Keras is not there where only PyTorch was asked for.
    if framework == "keras":
        from .keras_engine import KerasTrainer  # noqa: PLC0415

        make: Callable[..., Trainer] = KerasTrainer
    else:
        from .pytorch_engine import PyTorchTrainer  # noqa: PLC0415

        make = PyTorchTrainer
    rate = described.pop("learning_rate", LEARNING_RATE[optimizer])
    return make(setting=setting, optimizer=optimizer, learning_rate=rate, **described)


def engine_facts(framework: str, device: str) -> dict[str, Any]:
    """Return the engine with its version, and what it runs on."""
    engine = f"PyTorch {torch.__version__}"
    if framework == "keras":
        import keras  # noqa: PLC0415

        engine = f"Keras {keras.__version__} on {engine}"
    return {"engine": engine, "device": device}


def gpu_facts(device: str) -> dict[str, Any]:
    """Return the GPU's name, its compute capability and the most that tensors took; nothing on a CPU."""
    if device != "cuda":
        return {}
    major, minor = torch.cuda.get_device_capability()
    return {
        "gpu": torch.cuda.get_device_name(),
        "compute_capability": f"{major}.{minor}",
        "cuda_max_allocated_mib": round(torch.cuda.max_memory_allocated() / MIB, 1),
    }


def peak_memory_mib(device: str) -> float:
    """Return the most memory that the process took: resident, or of the GPU with what CUDA itself needs."""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return float(total - free) / MIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
