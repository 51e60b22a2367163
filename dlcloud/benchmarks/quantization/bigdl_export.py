"""Write networks down in plain arrays for BigDL, whose Python is too old for onnx; runs beside the others.

A folder `partN` for each model: `layers.json`, a list of {op, name, sources, attributes, weights}; the arrays
`weights.npz`; and `images.npy`, what the model is judged by.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .cache import ModelCache
from .models import Built, Part, built, fp32_model, parts_of

REVISION = 1
"""Counts changes of the form; part of the name of a cached folder."""

KNOWN = {"Conv", "Gemm", "Relu", "MaxPool", "Flatten", "Add", "GlobalAveragePool"}


def build(*, network: str, seed: int, cache: str, calibration_images: int = 0) -> Built:
    """Make sure that the network is in the cache in this form; BigDL calibrates nothing ahead."""
    del calibration_images
    models = ModelCache(Path(cache))
    source = fp32_model(network, seed, models)
    name = f"{source.stem}-layers-r{REVISION}"
    folder = models.get(name, lambda target: _export(parts_of(source, network, seed), target))
    return built(folder, network, seed)


def _export(parts: list[Part], target: Path) -> None:
    for number, part in enumerate(parts):
        folder = target / f"part{number}"
        folder.mkdir(parents=True)
        layers, weights = described(onnx.load(part.model))
        (folder / "layers.json").write_text(json.dumps(layers), encoding="utf-8")
        np.savez(folder / "weights.npz", **weights)
        np.save(folder / "images.npy", part.images)


def described(model: onnx.ModelProto) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Return a model's layers and the arrays that they name.

    Raises:
        ValueError: It has layers of a kind that is not KNOWN.
    """
    unknown = sorted({node.op_type for node in model.graph.node} - KNOWN)
    if unknown:
        raise ValueError(f"no form for BigDL of {', '.join(unknown)}")
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    layers = [
        {
            "op": node.op_type,
            "name": node.output[0],
            "sources": [name for name in node.input if name not in arrays],
            "weights": [name for name in node.input if name in arrays],
            "attributes": {each.name: helper.get_attribute_value(each) for each in node.attribute},
        }
        for node in model.graph.node
    ]
    return layers, arrays
