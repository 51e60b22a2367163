"""The user's own model file: its input, and the data that it is calibrated and judged by.

`describe` runs once, in a worker, and writes a small file, the description. Its path stands in for the model
wherever the benchmark's own networks have a name.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np

from ..harness.preparation import ModelCache
from ..harness.workload import UntimedWorkload
from .engines import DESCRIPTION_SUFFIX, Format, detect_format, read_description
from .inference import draw_shaped_images

SYNTHETIC_IMAGES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModel:
    """A description."""

    name: str  # for cached files: the file's name with a digest of its content
    source: str  # the user's own path
    file: str  # the file that engines read: the source, or the program that a Keras file was exported to
    shape: tuple[int, ...]  # of one input, without the batch
    batch: int | None  # the only batch that the model takes; None if it takes any
    data: str | None  # the `.npz` for calibration and judging; None for synthetic images

    @classmethod
    def read(cls, network: str) -> Self | None:
        """Return the model of a description's path; None for the name of a network."""
        description = read_description(network)
        if description is None:
            return None
        return cls(**{**description, "shape": tuple(description["shape"])})

    def calibration_inputs(self, count: int, seed: int) -> np.ndarray:
        """Return inputs to take scales from: at most half of the user's, or synthetic images."""
        if self.data is None:
            return draw_shaped_images(self.shape, count, seed)
        inputs = self._inputs()
        return inputs[: max(1, min(count, len(inputs) // 2))]

    def judging_inputs(self, seed: int) -> np.ndarray:
        """Return inputs to judge by: the second half of the user's, or synthetic images."""
        if self.data is None:
            return draw_shaped_images(self.shape, SYNTHETIC_IMAGES, seed)
        inputs = self._inputs()
        return inputs[len(inputs) // 2 :]

    def labels(self) -> list[int] | None:
        """Return the labels of the inputs to judge by, if the user gave any."""
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


def describe(*, file: str, data: str | None, shape: Sequence[int] | None, cache: str) -> UntimedWorkload:
    """Read the model's input, check the data against it, and write the description.

    Raises:
        ValueError: The model or the data cannot be used; the message says why.
    """
    path = Path(file)
    models = ModelCache(Path(cache))
    name = f"{path.stem}-{_digest_files(path)}"
    if detect_format(path) is Format.KERAS:
        path = models.get(f"{name}.pt2", lambda target: _export_keras(Path(file), target))
    batch, *own_shape = READERS[detect_format(path)](path)
    shape = _resolve_shape(own_shape, shape)
    if data is None:
        draw_shaped_images(shape, 1, 0)
        kept = None
    else:
        kept = str(_keep_data(_read_data(Path(data), shape), name, models))
    model = UserModel(name=name, source=file, file=str(path.resolve()), shape=shape, batch=batch, data=kept)
    text = json.dumps(asdict(model))
    description = models.get(
        f"{name}-{_digest(text.encode())}{DESCRIPTION_SUFFIX}",
        lambda target: target.write_text(text, encoding="utf-8"),
    )
    return UntimedWorkload(facts={"description": str(description), "name": Path(file).name, "batch": batch})


def _resolve_shape(own: Sequence[int | None], given: Sequence[int] | None) -> tuple[int, ...]:
    """Return the shape of one input: given or the model's own; ValueError if it is open or they differ."""
    sizes = list(own) if given is None else list(given)
    if None in sizes:
        raise ValueError(f"the model leaves its input's shape open, {list(own)}: give --input-shape")
    fits = len(sizes) == len(own) and all(
        size in (None, other) for size, other in zip(own, sizes, strict=False)
    )
    if own and not fits:
        raise ValueError(f"the model takes inputs of shape {list(own)}, not {sizes}")
    return tuple(int(size) for size in sizes if size is not None)


def _read_data(path: Path, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Read inputs, and labels where there are any; ValueError if they do not suit the model."""
    arrays = _read_arrays(path)
    labels = arrays.pop("labels", None)
    if len(arrays) != 1:
        raise ValueError(
            f"{path} holds {sorted(arrays)} in addition to labels; one array of inputs is expected"
        )
    (inputs,) = arrays.values()
    if inputs.shape[1:] != shape:
        raise ValueError(f"{path} holds {list(inputs.shape[1:])} as inputs; the model takes {list(shape)}")
    if len(inputs) < 2:  # noqa: PLR2004 - one for the scales, one to judge by
        raise ValueError(
            f"{path} holds {len(inputs)} inputs; at least 2 are needed, to calibrate and to judge"
        )
    if labels is None:
        return {"inputs": inputs.astype(np.float32)}
    if labels.shape != (len(inputs),):
        raise ValueError(f"{path} holds {len(inputs)} inputs and labels of shape {list(labels.shape)}")
    return {"inputs": inputs.astype(np.float32), "labels": labels.astype(np.int64)}


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
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


def _keep_data(arrays: Mapping[str, np.ndarray], name: str, models: ModelCache) -> Path:
    """Copy the data next to the models, so that a later change of the user's leaves the figures valid."""

    def write(target: Path) -> None:
        with target.open("wb") as stream:
            np.savez(stream, **arrays)

    digest = _digest(b"".join(array.tobytes() for array in arrays.values()))
    return models.get(f"{name}-data-{digest}.npz", write)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _digest_files(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:12]


def _read_onnx_shape(path: Path) -> list[int | None]:
    import onnx  # noqa: PLC0415 - one format's

    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    _expect_one(len(inputs))
    tensor = inputs[0].type.tensor_type
    if tensor.elem_type != onnx.TensorProto.FLOAT:
        raise ValueError(f"its input is {onnx.TensorProto.DataType.Name(tensor.elem_type)}, not FLOAT")
    return [dim.dim_value or None for dim in tensor.shape.dim]


def _read_program_shape(path: Path) -> list[int | None]:
    import torch  # noqa: PLC0415 - one format's

    program = torch.export.load(path)
    names = program.graph_signature.user_inputs
    _expect_one(len(names))
    (value,) = (node.meta["val"] for node in program.graph.nodes if node.name == names[0])
    if value.dtype != torch.float32:
        raise ValueError(f"its input is {value.dtype}, not torch.float32")
    return [size if isinstance(size, int) else None for size in value.shape]


def _read_saved_model_shape(path: Path) -> list[int | None]:
    import openvino  # type: ignore[import-not-found]  # noqa: PLC0415 - one format's

    inputs = openvino.Core().read_model(path).inputs
    _expect_one(len(inputs))
    if inputs[0].element_type != openvino.Type.f32:
        raise ValueError(f"its input is {inputs[0].element_type}, not f32")
    shape = inputs[0].partial_shape
    if shape.rank.is_dynamic:
        raise ValueError("the model leaves the rank of its input open")
    return [None if size.is_dynamic else size.get_length() for size in shape]


def _expect_one(inputs: int) -> None:
    if inputs != 1:
        raise ValueError(f"the model has {inputs} inputs; only models of one can be measured")


READERS: Mapping[Format, Callable[[Path], list[int | None]]] = {
    Format.ONNX: _read_onnx_shape,
    Format.PT2: _read_program_shape,
    Format.SAVED_MODEL: _read_saved_model_shape,
}


def _export_keras(source: Path, target: Path) -> None:
    from .torch_programs import export_keras  # noqa: PLC0415 - one format's

    export_keras(source, target)
