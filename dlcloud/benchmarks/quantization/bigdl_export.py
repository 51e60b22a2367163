"""Write networks as plain arrays for BigDL, whose Python is too old for onnx; runs in the usual environment.

A folder `partN` for each model: `layers.json`, a list of {op, name, sources, attributes, weights}; the arrays
`weights.npz`; and `images.npy`, the images that the model is judged by.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..harness.workload import UntimedWorkload
from .inference import Part
from .models import BuildJob, fp32_model, load_parts

REVISION = 1
"""Counts changes of the form; part of the name of a cached folder."""

SUPPORTED = {"Conv", "Gemm", "Relu", "MaxPool", "Flatten", "Add", "GlobalAveragePool"}


def build(**arguments: Any) -> UntimedWorkload:  # noqa: ANN401 - those of BuildJob
    """Make sure that the network is in the cache in this form; BigDL calibrates nothing ahead."""
    job = BuildJob(**arguments)
    source = fp32_model(job)
    name = f"{source.stem}-layers-r{REVISION}"
    return job.report(
        job.models.get(name, lambda target: _export(load_parts(source, job.network, job.seed), target))
    )


def _export(parts: list[Part], target: Path) -> None:
    for number, part in enumerate(parts):
        folder = target / f"part{number}"
        folder.mkdir(parents=True)
        layers, weights = list_layers(onnx.load(part.model))
        (folder / "layers.json").write_text(json.dumps(layers), encoding="utf-8")
        np.savez(folder / "weights.npz", **weights)
        np.save(folder / "images.npy", part.images)


def list_layers(model: onnx.ModelProto) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Return a model's layers and the arrays that they name.

    Raises:
        ValueError: It has layers of a kind that is not supported.
    """
    unknown = sorted({node.op_type for node in model.graph.node} - SUPPORTED)
    if unknown:
        raise ValueError(f"no form for BigDL of {', '.join(unknown)}")
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    layers = [
        {
            "op": node.op_type,
            "name": node.output[0],
            "sources": [name for name in node.input if name not in arrays],
            "weights": [name for name in node.input if name in arrays],
            "attributes": {
                attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute
            },
        }
        for node in model.graph.node
    ]
    return layers, arrays
