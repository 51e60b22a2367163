"""Export Keras files as programs of PyTorch; the only module that imports Keras."""

import os
from pathlib import Path

import torch

os.environ["KERAS_BACKEND"] = "torch"
import keras


class Whole(torch.nn.Module):
    """A Keras model whose only argument has a name, which export wants."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute the output."""
        return self.model(images)


def export(source: Path, target: Path) -> None:
    """Export the file `source` into the file `target`, its batch left open.

    Raises:
        ValueError: It has several inputs, or leaves their shape open.
    """
    model = keras.saving.load_model(source, compile=False).eval()
    if len(model.inputs) != 1:
        raise ValueError(f"the model has {len(model.inputs)} inputs; only models of one can be measured")
    sizes = model.inputs[0].shape[1:]
    if None in sizes:
        raise ValueError(f"the model leaves its input's shape open, {list(sizes)}")
    # An export from a batch of one would take the one for a constant.
    example = torch.zeros(2, *sizes)
    with torch.no_grad():
        program = torch.export.export(
            Whole(model).eval(), (example,), dynamic_shapes=({0: torch.export.Dim("batch")},)
        )
    torch.export.save(program, target)
