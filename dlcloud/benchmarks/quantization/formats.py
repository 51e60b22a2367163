"""Recognise the formats of model files by their names, and read descriptions of the user's models."""

import json
from enum import Enum
from pathlib import Path
from typing import Any


class Format(Enum):
    """The format of a model file; the value is its usual name."""

    ONNX = "ONNX"
    PT2 = "torch.export"
    KERAS = "Keras"
    SAVED_MODEL = "TensorFlow SavedModel"


DESCRIPTION_SUFFIX = ".described.json"
"""End of the name of a file that describes a user's model; its path stands in for a network's name."""

SUFFIXES = {".onnx": Format.ONNX, ".pt2": Format.PT2, ".keras": Format.KERAS, "": Format.SAVED_MODEL}


def detect_format(path: Path) -> Format:
    """Return the format of a model file.

    Raises:
        ValueError: The suffix is unknown.
    """
    try:
        return SUFFIXES[path.suffix]
    except KeyError:
        raise ValueError(
            f"{path}: a model is an .onnx, .pt2 or .keras file, or the folder of a TensorFlow SavedModel"
        ) from None


def explain_missing(path: Path) -> str | None:
    return None if path.exists() else f"{path} does not exist"


def explain_missing_model(path: Path) -> str | None:
    if (reason := explain_missing(path)) is not None:
        return reason
    if detect_format(path) is Format.SAVED_MODEL and not (path / "saved_model.pb").is_file():
        return f"{path} is no TensorFlow SavedModel: it holds no saved_model.pb"
    return None


def is_user_model(network: str) -> bool:
    """True if a network is a description's path, False if it is the name of one of the benchmark's own."""
    return network.endswith(DESCRIPTION_SUFFIX)


def read_description(network: str) -> dict[str, Any] | None:
    """Return the description of the user's model; None for a network of the benchmark's own."""
    if not is_user_model(network):
        return None
    description: dict[str, Any] = json.loads(Path(network).read_text(encoding="utf-8"))
    return description


def read_title(network: str) -> str:
    """Return the network's name, or the name of the user's file."""
    description = read_description(network)
    return network if description is None else Path(description["source"]).name
