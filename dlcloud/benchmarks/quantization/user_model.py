"""The user's own model file: what it takes, and what it is calibrated and judged by.

`describe` runs once, in a worker; what it finds goes into a small file, the description, whose path stands
for the model wherever the benchmark's own networks have a name.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import images
from .cache import ModelCache
from .formats import DESCRIBED, Format, format_of

SYNTHETIC_IMAGES = 16
CHANNELS = {1, 3, 4}
"""How many an image may have; what else the input's shape may mean, synthetic images do not suit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModel:
    """A description.

    Attributes:
        name: For cached files: the file's name with a digest of its content.
        source: The user's own path.
        file: Which engines read: the same, or what a Keras file was exported to.
        shape: Of one input, without the batch.
        batch: The only batch that the model takes, or None where it takes any.
        data: The `.npz` that calibration and judging draw on, or None: synthetic images.
    """

    name: str
    source: str
    file: str
    shape: tuple[int, ...]
    batch: int | None
    data: str | None

    def calibration(self, count: int, seed: int) -> np.ndarray:
        """Return inputs to take scales from: at most half of the user's, or synthetic ones."""
        if self.data is None:
            return synthetic(self.shape, count, seed)
        inputs = self._inputs()
        return inputs[: max(1, min(count, len(inputs) // 2))]

    def judged(self, seed: int) -> np.ndarray:
        """Return inputs to judge by: the second half of the user's, or synthetic ones."""
        if self.data is None:
            return synthetic(self.shape, SYNTHETIC_IMAGES, seed)
        inputs = self._inputs()
        return inputs[len(inputs) // 2 :]

    def labels(self) -> list[int] | None:
        """Return the labels of the inputs that are judged by, where the user gave any."""
        if self.data is None:
            return None
        with np.load(self.data) as data:
            if "labels" not in data:
                return None
            labels: list[int] = data["labels"][len(data["labels"]) // 2 :].tolist()
            return labels

    def _inputs(self) -> np.ndarray:
        assert self.data is not None  # noqa: S101 - asked for by the callers above
        with np.load(self.data) as data:
            inputs: np.ndarray = data["inputs"]
        return inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What `describe` reports: nothing to time, only facts."""

    facts: Mapping[str, Any]
    items_per_step: int = 0

    def step(self) -> None:
        """Do nothing."""

    def outputs(self) -> list[list[float]]:
        """Return nothing."""
        return []


def described(network: str) -> UserModel | None:
    """Return the user's model that a description's path stands for; None for the name of a network."""
    if not network.endswith(DESCRIBED):
        return None
    values = json.loads(Path(network).read_text(encoding="utf-8"))
    return UserModel(**{**values, "shape": tuple(values["shape"])})


def describe(*, file: str, data: str | None, shape: Sequence[int] | None, cache: str) -> Described:
    """Read what the model takes, check the data against it, and write the description.

    Raises:
        ValueError: The model or the data cannot be used; the message says why.
    """
    path = Path(file)
    models = ModelCache(Path(cache))
    name = f"{path.stem}-{_digest(path)}"
    if format_of(path) is Format.KERAS:
        path = models.get(f"{name}.pt2", lambda target: _export_keras(Path(file), target))
    batch, *told = READERS[format_of(path)](path)
    sizes = _sizes(told, shape)
    inputs = None if data is None else _data(Path(data), sizes)
    kept = None if inputs is None else str(_kept(inputs, name, models))
    if inputs is None:
        synthetic(sizes, 1, 0)
    model = UserModel(name=name, source=file, file=str(path.resolve()), shape=sizes, batch=batch, data=kept)
    key = hashlib.sha256(json.dumps(asdict(model)).encode()).hexdigest()[:12]
    text = json.dumps(asdict(model))
    written = models.get(f"{name}-{key}{DESCRIBED}", lambda target: _write(target, text))
    return Described(facts={"description": str(written), "name": Path(file).name, "batch": batch})


def synthetic(shape: tuple[int, ...], count: int, seed: int) -> np.ndarray:
    """Draw synthetic images of a shape, channels first or last: (count, *shape) float32.

    Raises:
        ValueError: The shape is not that of an image.
    """
    if len(shape) == 3 and shape[0] in CHANNELS:  # noqa: PLR2004 - channels and two sides
        return np.ascontiguousarray(_drawn(shape[0], shape[1:], count, seed))
    if len(shape) == 3 and shape[2] in CHANNELS:  # noqa: PLR2004 - as above
        return np.ascontiguousarray(_drawn(shape[2], shape[:2], count, seed).transpose(0, 2, 3, 1))
    raise ValueError(f"an input of shape {list(shape)} is not an image: give --data")


def _drawn(channels: int, sides: tuple[int, ...], count: int, seed: int) -> np.ndarray:
    drawn = images.draw(count, max(sides), seed)
    return drawn[:, np.arange(channels) % drawn.shape[1], : sides[0], : sides[1]]


def _sizes(told: Sequence[int | None], given: Sequence[int] | None) -> tuple[int, ...]:
    """Return the shape of one input, as given where the model leaves it open.

    Raises:
        ValueError: It stays open, or the two contradict each other.
    """
    sizes = list(given) if given is not None else list(told)
    if None in sizes:
        raise ValueError(f"the model leaves its input's shape open, {list(told)}: give --input-shape")
    fits = len(sizes) == len(told) and all(
        ours in (None, theirs) for ours, theirs in zip(told, sizes, strict=False)
    )
    if told and not fits:
        raise ValueError(f"the model takes inputs of shape {list(told)}, not {sizes}")
    return tuple(int(size) for size in sizes if size is not None)


def _data(path: Path, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Read inputs, and labels where there are any.

    Raises:
        ValueError: They are not what the model takes.
    """
    arrays = _arrays(path)
    labels = arrays.pop("labels", None)
    if len(arrays) != 1:
        raise ValueError(f"{path} holds {sorted(arrays)} beside labels, where one array of inputs is wanted")
    (inputs,) = arrays.values()
    if inputs.shape[1:] != shape:
        raise ValueError(f"{path} holds {list(inputs.shape[1:])} as inputs; the model takes {list(shape)}")

    if len(inputs) < 2:  # noqa: PLR2004 - one for the scales, one to judge by
        raise ValueError(
            f"{path} holds {len(inputs)} inputs; at least 2 are wanted, to calibrate and to judge"
        )
    if labels is None:
        return {"inputs": inputs.astype(np.float32)}
    if labels.shape != (len(inputs),):
        raise ValueError(f"{path} holds {len(inputs)} inputs and labels of shape {list(labels.shape)}")
    return {"inputs": inputs.astype(np.float32), "labels": labels.astype(np.int64)}


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Read an `.npz`, an `.npy`, or a folder of `.npy` files, one input each and perhaps `labels.npy`."""
    try:
        if path.is_dir():
            files = sorted(file for file in path.glob("*.npy") if file.stem != "labels")
            arrays = {"inputs": np.stack([np.load(file) for file in files])} if files else {}
            labels = path / "labels.npy"
            return {**arrays, **({"labels": np.load(labels)} if labels.exists() else {})}
        loaded = np.load(path)
        return {"inputs": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as arrays of NumPy: {error}") from None


def _kept(arrays: Mapping[str, np.ndarray], name: str, models: ModelCache) -> Path:
    """Keep the data beside the models, so that the user's may change without changing what was measured."""
    digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays.values())).hexdigest()[:12]

    def write(target: Path) -> None:
        with target.open("wb") as stream:
            np.savez(stream, **arrays)

    return models.get(f"{name}-data-{digest}.npz", write)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:12]


def _write(target: Path, text: str) -> None:
    target.write_text(text, encoding="utf-8")


def _onnx_input(path: Path) -> list[int | None]:
    """Return the shape of an ONNX file's input, the batch first; None where it is open."""
    import onnx  # noqa: PLC0415 - one format's

    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [each for each in graph.input if each.name not in weights]
    _expect_one(len(inputs))
    kind = inputs[0].type.tensor_type
    if kind.elem_type != onnx.TensorProto.FLOAT:
        raise ValueError(f"its input is {onnx.TensorProto.DataType.Name(kind.elem_type)}, not FLOAT")
    return [dim.dim_value or None for dim in kind.shape.dim]


def _program_input(path: Path) -> list[int | None]:
    """Return the shape of an exported program's input."""
    import torch  # noqa: PLC0415 - one format's

    program = torch.export.load(path)
    names = program.graph_signature.user_inputs
    _expect_one(len(names))
    (value,) = (node.meta["val"] for node in program.graph.nodes if node.name == names[0])
    if value.dtype != torch.float32:
        raise ValueError(f"its input is {value.dtype}, not torch.float32")
    return [size if isinstance(size, int) else None for size in value.shape]


def _saved_model_input(path: Path) -> list[int | None]:
    """Return the shape of a TensorFlow SavedModel's input, as OpenVINO reads it."""
    import openvino  # type: ignore[import-not-found]  # noqa: PLC0415 - one format's

    inputs = openvino.Core().read_model(path).inputs
    _expect_one(len(inputs))
    if inputs[0].element_type != openvino.Type.f32:
        raise ValueError(f"its input is {inputs[0].element_type}, not f32")
    shape = inputs[0].partial_shape
    if shape.rank.is_dynamic:
        raise ValueError("the model does not say the shape of its input")
    return [None if size.is_dynamic else size.get_length() for size in shape]


def _expect_one(inputs: int) -> None:
    if inputs != 1:
        raise ValueError(f"the model has {inputs} inputs; only models of one can be measured")


READERS: Mapping[Format, Callable[[Path], list[int | None]]] = {
    Format.ONNX: _onnx_input,
    Format.PT2: _program_input,
    Format.SAVED_MODEL: _saved_model_input,
}


def _export_keras(source: Path, target: Path) -> None:
    """Export a Keras file as a program of PyTorch, its batch left open; the engines read that."""
    from .keras_export import export  # noqa: PLC0415 - one format's

    export(source, target)
