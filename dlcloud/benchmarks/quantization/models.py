"""Build the fp32 models that the engines share, and choose which images serve which purpose.

Runs inside workers; imports no engine, so that what a setting's process weighs is its own engine's weight.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..harness.digits import load_folds
from ..harness.preparation import ModelCache
from ..harness.workload import UntimedWorkload
from . import digits
from .inference import DIGITS, InferenceJob, Part, draw_images, repeat_images
from .onnx_graph import OPSET
from .onnx_networks import NETWORKS, REVISION
from .onnx_networks import write as write_network
from .operations import work_of
from .user_model import UserModel

# Different images for calibration, agreement and timing, all from one seed of the user's.
CALIBRATION, AGREEMENT, TIMING = 1, 2, 3

AGREEMENT_IMAGES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildJob:
    """What a worker builds."""

    network: str  # name of the network, or path of the description of the user's model
    seed: int  # of weights and images
    cache: str  # folder of the built models
    calibration_images: int = 0  # how many images int8 scales are taken from

    @property
    def models(self) -> ModelCache:
        return ModelCache(Path(self.cache))

    def stem(self, source: Path) -> str:
        """Return how the names of files made of a model begin."""
        user = UserModel.read(self.network)
        return source.stem if user is None else user.name

    def report(self, model: Path, graph: Path | None = None) -> UntimedWorkload:
        """Return the facts of a cached model.

        `labels` are those of the images that judge it, if any; `work` is that of an input, of the
        model or of the ONNX graph that it was made of.
        """
        labels = None
        if (user := UserModel.read(self.network)) is not None:
            labels = user.labels()
        elif self.network == DIGITS:
            labels = np.concatenate([fold.held_out_labels for fold in load_folds(self.seed)]).tolist()
        facts = {"model": str(model), "model_bytes": model_bytes(model), "labels": labels}
        facts["work"] = work_of(graph or model)
        return UntimedWorkload(facts=facts)


def build_fp32(**arguments: Any) -> UntimedWorkload:  # noqa: ANN401 - those of BuildJob
    """Make sure that the fp32 model is in the cache; its path is the fact `model`, its size `model_bytes`."""
    job = BuildJob(**arguments)
    return job.report(fp32_model(job))


def fp32_model(job: BuildJob) -> Path:
    """Return the path of the fp32 model, built if it is not cached, or of the user's own."""
    if (user := UserModel.read(job.network)) is not None:
        return Path(user.file)
    name = f"{job.network}-seed{job.seed}-opset{OPSET}"
    if job.network == DIGITS:
        return job.models.get(f"{name}-r{digits.REVISION}", lambda target: digits.build(job.seed, target))
    network = NETWORKS[job.network]
    return job.models.get(f"{name}-r{REVISION}.onnx", lambda target: write_network(network, job.seed, target))


def build_quantized(
    job: BuildJob, source: Path, kind: str, quantize: Callable[[Path, Path, np.ndarray], None]
) -> UntimedWorkload:
    """Make sure that the quantized form of a model is in the cache, or those of the digits' folds.

    `source` is the fp32 model in the engine's format; `kind`, the engine's way and version, ends the file's
    name; `quantize` takes a file, the path of its quantized form, and calibration images.
    """

    def write(target: Path) -> None:
        count = job.calibration_images
        if job.network != DIGITS:
            quantize(source, target, _draw(job.network, count, job.seed, CALIBRATION))
            return
        target.mkdir()
        for file, fold in zip(fold_files(source), load_folds(job.seed), strict=True):
            quantize(file, target / file.name, fold.training[:count])

    return job.report(job.models.get(f"{job.stem(source)}-int8-minmax{job.calibration_images}-{kind}", write))


def fold_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("fold*"))


def model_bytes(model: Path) -> int:
    files = [file for file in model.rglob("*") if file.is_file()] if model.is_dir() else [model]
    return sum(file.stat().st_size for file in files)


def load_parts(model: Path, network: str, seed: int) -> list[Part]:
    """Return the model with its images for agreement, or each fold with the images held out from it."""
    if (user := UserModel.read(network)) is not None:
        return [Part(model=model, images=user.judging_inputs(1000 * seed + AGREEMENT))]
    if network != DIGITS:
        return [Part(model=model, images=_draw(network, AGREEMENT_IMAGES, seed, AGREEMENT))]
    files = fold_files(model)
    return [
        Part(model=file, images=fold.held_out) for file, fold in zip(files, load_folds(seed), strict=True)
    ]


def draw_feed(parts: Sequence[Part], job: InferenceJob) -> np.ndarray:
    if job.network in NETWORKS:
        return _draw(job.network, job.batch, job.seed, TIMING)
    return repeat_images(parts[0].images, job.batch)


def _draw(network: str, count: int, seed: int, purpose: int) -> np.ndarray:
    """Draw images of a network's size, (count, 3, size, size) float32, others for each purpose.

    For the user's model, return its calibration data.
    """
    seed = 1000 * seed + purpose
    if (user := UserModel.read(network)) is not None:
        return user.calibration_inputs(count, seed)
    return draw_images(count, NETWORKS[network].size, seed)
