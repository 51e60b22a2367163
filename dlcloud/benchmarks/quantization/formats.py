"""Tell the formats of model files apart, by their names alone: the launcher asks, too."""

import json
from enum import Enum
from pathlib import Path
from typing import Any


class Format(Enum):
    """What a model file is; the value is what people call it."""

    ONNX = "ONNX"
    PT2 = "torch.export"
    KERAS = "Keras"
    SAVED_MODEL = "TensorFlow SavedModel"


DESCRIBED = ".described.json"
"""End of the name of a file that describes a user's model, in the place of a network's name."""

SUFFIXES = {".onnx": Format.ONNX, ".pt2": Format.PT2, ".keras": Format.KERAS, "": Format.SAVED_MODEL}


def format_of(path: Path) -> Format:
    """Return the format of a model file.

    Raises:
        ValueError: The name is that of none.
    """
    try:
        return SUFFIXES[path.suffix]
    except KeyError:
        raise ValueError(
            f"{path}: a model is an .onnx, .pt2 or .keras file, or the folder of a TensorFlow SavedModel"
        ) from None


def fault_of(path: Path) -> str | None:
    """Say what is wrong with where a model should lie; None where it lies there."""
    if (fault := absent(path)) is not None:
        return fault
    if format_of(path) is Format.SAVED_MODEL and not (path / "saved_model.pb").is_file():
        return f"{path} is no TensorFlow SavedModel: it holds no saved_model.pb"
    return None


def absent(path: Path) -> str | None:
    """Say that a path does not exist; None where it does."""
    return None if path.exists() else f"{path} does not exist"


def title_of(network: str) -> str:
    """Return what people call a network, or the user's model: the name of its file."""
    if not network.endswith(DESCRIBED):
        return network
    return Path(_described(network)["source"]).name


def only_batch(network: str) -> int | None:
    """Return the only batch that a model takes; None where it takes any."""
    only: int | None = _described(network)["batch"] if network.endswith(DESCRIBED) else None
    return only


def format_described(network: str) -> Format | None:
    """Return the format of the user's model; None where it is a network of the benchmark's own."""
    return format_of(Path(_described(network)["source"])) if network.endswith(DESCRIBED) else None


def _described(network: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(Path(network).read_text(encoding="utf-8"))
    return values
